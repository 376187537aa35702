"""Synchronizations and averaged gradients of ResNet-50 in torch.channels_last, against contiguous memory.

    python benchmarks/memory_format.py [--device cuda0] [--rounds N] [--out FOLDER]

Two workers share the device. Contiguous, channels_last on both workers, and channels_last on the first alone are
measured in turn, in the same processes; printed are medians of all rounds and both workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "memory_format_train.py"
GOAL = 1.05


def main(device: str = "cuda0", rounds: int = 7, out: Path = report.FOLDER) -> None:
    """Measure, print the ratios, and write memory_format.json."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-D", device, device, "--log-dir", f"{folder}/logs"]
        done = subprocess.run([*command, str(SCRIPT), folder, str(rounds)], env=os.environ, check=False)
        if done.returncode:
            logs = "\n".join(path.read_text()[-3000:] for path in sorted(Path(folder, "logs").glob("rank*.log")))
            raise SystemExit(f"{logs}\nthe job FAILED")
        each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    rows, goals = [], []
    for what in ("sync", "average", "overlapping"):
        medians = {}
        for memory in ("contiguous", "channels_last", "on the first worker"):
            taken = [s for of in each for s in of[f"{what} {memory}"]]
            medians[memory] = 1e3 * report.median(taken)
            ratio = medians[memory] / medians["contiguous"]
            rows.append({"what": what, "memory": memory, "ms": medians[memory], "over_contiguous": ratio})
            if memory == "channels_last":
                goals.append(report.goal(f"{what} in channels_last, over contiguous", ratio, GOAL, False))
    headings = ["what", "memory", "ms", "over contiguous"]
    report.table(f"ResNet-50, two workers on {device}", headings, [list(row.values()) for row in rows])
    report.save("memory_format" if device == "cpu" else "memory_format-cuda", {"results": rows, "goals": goals}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda0")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    main(**vars(parser.parse_args()))
