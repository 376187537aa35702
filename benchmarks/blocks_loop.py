"""What the extensions of platoon_plugins.blocks add to a batch of a main loop, on 2 workers.

    python benchmarks/blocks_loop.py [--devices cuda0 cuda1] [--quick]

Both workers run the same main loops in turn, each for some batches: without any extension of ours, the same once more
(which shows the noise), with ParameterSync that never synchronizes, with EASGD every 10 batches, and with averaged
gradients. Times are means over the batches of a run, so they contain the synchronizations; each is divided by that of
the plain run of the same round, and the medians over the rounds are shown. Needs Blocks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import report

SCRIPT = Path(__file__).parent / "scripts" / "blocks_train.py"


def run(options: argparse.Namespace, folder: Path) -> list[dict]:
    """Run the script on all workers; returns what each of them wrote."""
    size = ["--batches", "30", "--repeats", "2", "--widths", "64", "64", "10"] if options.quick else []
    workers = ["-D", *options.devices] if options.devices else ["-n", "2"]
    command = [sys.executable, "-m", "platoon_base", "launch", *workers, "--log-dir", str(folder / "logs")]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    subprocess.run([*command, str(SCRIPT), str(folder), *size], check=True, timeout=900, env=environment)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def rows(ranks: list[dict]) -> list[dict]:
    """Put the ranks' times together: a round takes as long as on the slower worker."""
    rounds = {way: [max(steps) for steps in zip(*(rank["steps"][way] for rank in ranks))] for way in ranks[0]["steps"]}
    plain = rounds["plain"]
    return [
        {
            "way": way,
            "parameters": ranks[0]["parameters"],
            "rounds": len(times),
            "step_ms": median(times),
            "to_plain": median(time / reference for time, reference in zip(times, plain)),
            "added_ms": median(time - reference for time, reference in zip(times, plain)),
        }
        for way, times in rounds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="*", help="devices of the workers, such as cuda0 cuda1; two on the CPU else")
    parser.add_argument("--quick", action="store_true", help="a small model and few batches, to see that it runs")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results")
    options = parser.parse_args()
    if importlib.util.find_spec("blocks") is None:
        print("needs Blocks: see tests/README.md, 'Tests and skips'")
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = run(options, Path(folder))
    results = rows(ranks)
    headings = ["way", "parameters", "rounds", "step_ms", "to_plain", "added_ms"]
    report.table(
        f"Main loops of Blocks on {ranks[0]['device']}", headings, [[row[h] for h in headings] for row in results]
    )
    name = "blocks_loop" if ranks[0]["device"] == "cpu" else f"blocks_loop-{ranks[0]['device'].rstrip('0123456789')}"
    report.save(name, {"results": results}, options.out)


if __name__ == "__main__":
    main()
