"""What averaged gradients cost Keras 3 on torch with one GPU for each of two workers, beside DistributedDataParallel.

All ways train the same model on the same batches by `fit`, with the same train_step: alone, with DistributedOptimizer
(NCCL), with the same in buckets of 25 MB that begin in the backward pass, with the same by way of the host, and with
the model wrapped in torch's DistributedDataParallel. They take turns in one job. A step is the median over an epoch's
batches, without the first ones; what is printed are medians over the rounds of all workers, and ratios within each
round.

    python benchmarks/keras_gpu.py [--quick] [--out FOLDER]
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

SCRIPT = Path(__file__).parent / "scripts" / "keras_gpu_train.py"
DEVICES = ["cuda0", "cuda1"]
GOAL = 1.05


def measure(options: list[str]) -> list[dict]:
    """Run the job; returns what each worker wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-D", *DEVICES, "--log-dir", f"{folder}/logs"]
        done = subprocess.run(
            [*command, str(SCRIPT), folder, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            logs = "\n".join(path.read_text()[-3000:] for path in sorted(Path(folder, "logs").glob("rank*.log")))
            raise SystemExit(f"{done.stdout}{done.stderr}\n{logs}\nthe job FAILED")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(len(DEVICES))]


def summarize(workers: list[dict]) -> list[dict]:
    """Return a row for each model and way."""
    rows = []
    for model, first in workers[0]["models"].items():
        rounds = [each for worker in workers for each in worker["models"][model]["rounds"]]
        for way in first["rounds"][0]:
            rows.append(
                {
                    "model": model,
                    "way": way,
                    "step_ms": report.median([each[way] for each in rounds]),
                    "to_alone": report.median([each[way] / each["alone"] for each in rounds]),
                    "to_ddp": report.median([each[way] / each["DDP"] for each in rounds]),
                }
            )
    return rows


COLUMNS = {"model": "model", "way": "way", "step_ms": "step, ms", "to_alone": "x alone", "to_ddp": "x DDP"}


def main() -> None:
    """Measure, and print the table and the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    arguments = parser.parse_args()
    workers = measure(["--quick"] * arguments.quick)
    rows = summarize(workers)
    versions = workers[0]["versions"]
    report.table(
        f"Keras {versions['keras']} on torch {versions['torch']}, {len(DEVICES)} x {versions['gpu']}; medians",
        list(COLUMNS.values()),
        [[row[key] for key in COLUMNS] for row in rows],
    )
    goals = [
        report.goal(f"averaged gradients, {row['model']}, x DDP", row["to_ddp"], GOAL, at_least=False)
        for row in rows
        if row["way"] == "averaged gradients"
    ]
    if arguments.out or not arguments.quick:
        results = {"results": rows, "goals": goals, "workers": workers}
        report.save("keras-gpu", results, arguments.out or report.FOLDER)


if __name__ == "__main__":
    main()
