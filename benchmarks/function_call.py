"""A step by one training call (`function`) against the same step in a loop on each worker, on 1 and 2 workers.

    python benchmarks/function_call.py [--devices cuda0 cuda1] [--quick]

A perceptron 784-256-256-10 learns by averaged gradients. The loop on each worker takes its part of a list of rows by
NumPy, calls the compiled function, and has a loss of its own; `function` excerpts, calls, and has the loss of all. All
ways run in turn in the same processes; each time is divided by that of the loop in the same round, and the medians over
the rounds are shown. Needs Theano and Lasagne.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import report

SCRIPT = Path(__file__).parent / "scripts" / "function_steps.py"
LOOP = "a loop on each worker"


def run(workers: list[str], quick: bool, folder: Path) -> list[dict]:
    """Run the script on all workers; returns what each of them wrote."""
    size = ["--steps", "3", "--repeats", "3"] if quick else []
    command = [sys.executable, "-m", "platoon_base", "launch", *workers, "--log-dir", str(folder / "logs")]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    subprocess.run([*command, str(SCRIPT), str(folder), *size], check=True, timeout=900, env=environment)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def rows(ranks: list[dict]) -> list[dict]:
    """Put the ranks' times together: a round takes as long as on the slower worker."""
    found = []
    for size, ways in ranks[0]["steps"].items():
        rounds = {way: [max(times) for times in zip(*(rank["steps"][size][way] for rank in ranks))] for way in ways}
        for way, times in rounds.items():
            found.append(
                {
                    "workers": ranks[0]["workers"],
                    "batch": int(size),
                    "way": way,
                    "rounds": len(times),
                    "step_ms": median(times),
                    "to_loop": median(time / loop for time, loop in zip(times, rounds[LOOP])),
                    "added_ms": median(time - loop for time, loop in zip(times, rounds[LOOP])),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="*", help="such as cuda0 cuda1; 1 and 2 workers on the CPU else")
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results")
    options = parser.parse_args()
    kinds = [["-D", *options.devices]] if options.devices else [["-D", "cpu"], ["-D", "cpu", "cpu"]]
    results = []
    for workers in kinds:
        with tempfile.TemporaryDirectory() as folder:
            results += rows(run(workers, options.quick, Path(folder)))
    headings = ["workers", "batch", "way", "rounds", "step_ms", "to_loop", "added_ms"]
    report.table("Steps of a perceptron", headings, [[row[h] for h in headings] for row in results])
    if not options.quick:
        report.save("function_call" + ("-devices" if options.devices else ""), {"results": results}, options.out)


if __name__ == "__main__":
    main()
