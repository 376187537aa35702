"""Steps of a PyTorch loop with averaged gradients, against DistributedDataParallel.

    python benchmarks/torch_ddp.py [--device cuda] [--workers 2] [--quick] [--out FOLDER]

The same workers make blocks of steps by each way in turn: without averages, by DistributedDataParallel (gloo on the
CPU, NCCL on CUDA) twice, and by `GradientAverage`, behind the backward pass and overlapping it. The ratio is the median
over blocks of a block's step to that by DistributedDataParallel in the same round, and the mean of the workers' times;
the ratio of the two blocks of DistributedDataParallel shows how much of it is noise.
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

SCRIPT = Path(__file__).parent / "scripts" / "torch_ddp_train.py"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
GOALS = {"10 MB": 1.0, "50 MB": 1.05}


def measure(device: str, workers: int, blocks: int, steps: int, models: list[str]) -> dict:
    """Run the job; return for each model the seconds of a step by each way, by rounds, the mean of the workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(workers), "--log-dir", f"{folder}/logs"]
        devices = [] if device == "cuda" else ["-D", *["cpu"] * workers]
        done = subprocess.run(
            [*command, *devices, str(SCRIPT), folder, device, str(blocks), str(steps), *models],
            env={**os.environ, **ONE_THREAD},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            logs = "\n".join(path.read_text()[-3000:] for path in sorted(Path(folder, "logs").glob("rank*.log")))
            raise SystemExit(f"{done.stdout}{done.stderr}\n{logs}\nthe job FAILED")
        each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(workers)]
    return {
        name: [{way: sum(times[way] for times in rounds) / workers for way in rounds[0]} for rounds in zip(*of)]
        for name, of in ((name, [one[name] for one in each]) for name in each[0])
    }


def main(device: str = "cpu", workers: int = 2, quick: bool = False, out: Path = report.FOLDER) -> None:
    """Measure, print the ratios, and write torch_ddp.json."""
    times = measure(device, workers, *((2, 2, ["20 KB", "10 MB"]) if quick else (15, 8, ["20 KB", *GOALS])))
    rows, goals = [], []
    for name, rounds in times.items():
        ratios = {way: report.median([each[way] / each["DDP"] for each in rounds]) for way in rounds[0]}
        for way, ratio in ratios.items():
            step_ms = 1e3 * report.median([each[way] for each in rounds])
            rows.append({"gradients": name, "way": way, "step_ms": step_ms, "over_ddp": ratio})
        if name in GOALS:
            best = min(ratios["average"], ratios["overlapping"])
            goals.append(report.goal(f"a step of {name}, over DistributedDataParallel's", best, GOALS[name], False))
    headings = ["gradients", "way", "ms per step", "over DistributedDataParallel"]
    report.table(f"{workers} workers on {device}", headings, [list(row.values()) for row in rows])
    report.save("torch_ddp" if device == "cpu" else f"torch_ddp-{device}", {"results": rows, "goals": goals}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    main(**vars(parser.parse_args()))
