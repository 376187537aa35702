"""What a Keras model of a gigabyte costs two workers: memory, and time at the end of an epoch.

Each way is a job of its own: two workers, an epoch of four batches, three epochs. "Plain" are two separate fits at the
same time. Memory is what is a worker's own: the center in shared memory is there once more, for all workers. Run it for
each back end, on a machine with 12 times the model's memory:

    KERAS_BACKEND=torch python benchmarks/keras_large.py [--megabytes 1024] [--out FOLDER]
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
from keras_fit import ONE_THREAD, backend

SCRIPT = Path(__file__).parent / "scripts" / "keras_large_train.py"
WORKERS = 2
WAYS = ("plain", "epoch ends", "EASGD", "defaults", "averaged gradients")


def measure(name: str, megabytes: int, way: str) -> dict:
    """Run one job; returns a row of medians over workers and epochs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(WORKERS), "--log-dir", f"{folder}/logs"]
        done = subprocess.run(
            [*command, str(SCRIPT), folder, str(megabytes), way],
            env={**os.environ, **ONE_THREAD, "KERAS_BACKEND": name},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nthe job FAILED")
        workers = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]
    size = workers[0]["megabytes"]
    return {
        "way": way,
        "keras": workers[0]["keras"],
        "megabytes": size,
        "step_s": report.median([took for each in workers for took in each["step_s"][1:]]),
        "epoch_end_s": report.median([took for each in workers for took in each["end_s"][:-1]]),
        "training_end_s": report.median([each["end_s"][-1] for each in workers]),
        "step_models": max(each["step_mb"] - each["before_mb"] for each in workers) / size,
        "end_models": max(each["end_mb"] - each["before_mb"] for each in workers) / size,
    }


COLUMNS = {
    "way": "way",
    "step_s": "step, s",
    "epoch_end_s": "epoch's end, s",
    "training_end_s": "end of fit, s",
    "step_models": "memory in steps, models",
    "end_models": "at ends, models",
}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the weights  [1024]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="what to measure  [all]")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks, of 1024 MB]")
    args = parser.parse_args()
    name = backend()
    rows = [measure(name, args.megabytes, way) for way in args.ways]
    title = f"{rows[0]['megabytes']:.0f} MB of weights, Keras {rows[0]['keras']} on {name}, {WORKERS} workers"
    report.table(title, list(COLUMNS.values()), [[row[key] for key in COLUMNS] for row in rows])
    print("memory beside what the process had before `fit`, in units of the model's weights")
    if args.out or args.megabytes == 1024:
        report.save(f"keras-large-{name}", {"backend": name, "results": rows}, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
