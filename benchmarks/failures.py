"""How soon the failure of one worker is on the launcher's output.

    python benchmarks/failures.py [--jobs 20] [--out FOLDER]

From the moment in which rank 1 of two raises an exception to the moment in which its first line is read from the
launcher's pipe; the other worker waits for it in a barrier.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

SCRIPT = """
import sys, time
from platoon_base import connect
worker = connect()
worker.barrier()
if worker.global_rank:
    open(sys.argv[1], "w").write(repr(time.time()))
    raise ValueError("no such file")
worker.barrier()
"""
GOAL_S = 1.0


def measure(folder: Path) -> float:
    """Run one job; returns seconds."""
    script, told = folder / "train.py", folder / "raised"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--log-dir", f"{folder}/logs", script, told]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as launcher:
        for line in launcher.stdout or ():
            if line.startswith("worker 1 failed: ValueError"):
                return time.time() - float(told.read_text())
    raise SystemExit("the job ended without a word on the failure")


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks, of 20 jobs]")
    args = parser.parse_args()
    seconds = []
    for _ in range(args.jobs):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(measure(Path(folder)))
    print(f"median {report.median(seconds):.3f} s, largest {max(seconds):.3f} s")
    goals = [report.goal("a worker's failure on the launcher's output, s, the largest", max(seconds), GOAL_S, False)]
    if args.out or args.jobs == 20:
        report.save("failures", {"seconds": seconds, "goals": goals}, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
