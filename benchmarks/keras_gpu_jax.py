"""What averaged gradients cost Keras 3 on JAX with one GPU for each of two workers, beside Keras's own DataParallel.

Two jobs are there at the same time and measure in turn, round by round: two workers that fit alone, with
DistributedOptimizer (NCCL) and with the same by way of the host; and one process that has both GPUs and fits with
keras.distribution.DataParallel to as many rows for each GPU. Steps are means over a fit, the GPUs' work included;
printed are medians over rounds and workers. Run it on a host with two GPUs:

    python benchmarks/keras_gpu_jax.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "keras_gpu_jax_train.py"
DEVICES = ["cuda0", "cuda1"]
PROCESSES = {"workers": len(DEVICES), "parallel": 1}
REFERENCE, GOAL = "DataParallel", 1.1
DEADLINE_S = 900.0


def start(role: str, folder: str, options: list[str]) -> subprocess.Popen:
    """Start a job."""
    launch = ["-m", "platoon_base", "launch", "-D", *DEVICES, "--log-dir", f"{folder}/logs"]
    with Path(folder, f"{role}.log").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *(launch if role == "workers" else []), str(SCRIPT), folder, role, *options],
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "KERAS_BACKEND": "jax"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def measure(rounds: int, batches: int) -> dict[str, list[dict]]:
    """Run both jobs, round by round in turn; returns what each process wrote, by job."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {role: start(role, folder, ["--rounds", str(rounds), "--batches", str(batches)]) for role in PROCESSES}
        deadline = time.monotonic() + DEADLINE_S
        try:
            for number in range(rounds + 1):
                for role, count in list(PROCESSES.items())[:: 1 if number % 2 else -1]:
                    Path(folder, f"go-{role}-{number}").touch()
                    done = [Path(folder, f"done-{role}-{number}-{rank}") for rank in range(count)]
                    while not all(path.exists() for path in done):
                        if jobs[role].poll() is not None or time.monotonic() > deadline:
                            raise SystemExit(failure(folder, role))
                        time.sleep(0.02)
            for role, job in jobs.items():
                if job.wait(60):
                    raise SystemExit(failure(folder, role))
        finally:
            for job in jobs.values():
                if job.poll() is None:
                    job.terminate()
                    job.wait(60)
        return {
            role: [json.loads(Path(folder, f"{role}-{rank}.json").read_text()) for rank in range(count)]
            for role, count in PROCESSES.items()
        }


def failure(folder: str, role: str) -> str:
    """Return why a job did not come to its end."""
    paths = [Path(folder, f"{role}.log"), *sorted(Path(folder, "logs").glob("rank*.log"))]
    return "\n".join(path.read_text()[-3000:] for path in paths) + f"\nthe job {role} FAILED"


def summarize(found: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each model and way."""
    rows = []
    for model, (reference,) in ((name, list(of.values())) for name, of in found["parallel"][0]["step_s"].items()):
        ways = {
            way: [worker["step_s"][model][way] for worker in found["workers"]]
            for way in found["workers"][0]["step_s"][model]
        }
        ways[REFERENCE] = [reference]
        alone = ways["alone"]
        for way, of in ways.items():
            rows.append(
                {
                    "model": model,
                    "way": way,
                    "step_ms": 1e3 * report.median([took for each in of for took in each]),
                    "to_alone": report.median(
                        [took / base for each, its in zip(of, alone) for took, base in zip(each, its)]
                    ),
                    "to_parallel": report.median([took / base for each in of for took, base in zip(each, reference)]),
                }
            )
    return rows


COLUMNS = {
    "model": "model",
    "way": "way",
    "step_ms": "step, ms",
    "to_alone": "x alone",
    "to_parallel": "x DataParallel",
}


def main() -> None:
    """Measure, and print the table and the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    arguments = parser.parse_args()
    found = measure(2, 50) if arguments.quick else measure(5, 100)
    rows = summarize(found)
    versions = found["workers"][0]["versions"]
    report.table(
        f"Keras {versions['keras']} on JAX {versions['jax']}, {len(DEVICES)} x {versions['gpu']}; medians",
        list(COLUMNS.values()),
        [[row[key] for key in COLUMNS] for row in rows],
    )
    goals = [
        report.goal(f"averaged gradients, {row['model']}, x DataParallel", row["to_parallel"], GOAL, at_least=False)
        for row in rows
        if row["way"] == "averaged gradients"
    ]
    if arguments.out or not arguments.quick:
        report.save("keras-gpu-jax", {"results": rows, "goals": goals, **found}, arguments.out or report.FOLDER)


if __name__ == "__main__":
    main()
