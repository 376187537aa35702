"""What EASGD every ten batches costs a fit of Keras 3 on GPUs, with the center in their memory and on the host.

Two jobs of as many workers, one for each place of the center, are there at the same time and measure in turn. Each
compares with fits that never synchronize, and with plain ones, in the same processes. Steps are means over a fit, the
GPU's work included; printed are medians over rounds and workers. Run it on a host with GPUs that reach each other:

    KERAS_BACKEND=torch python benchmarks/keras_gpu_center.py [--gpus 4] [--centers device] [--quick] [--out FOLDER]
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

SCRIPT = Path(__file__).parent / "scripts" / "keras_gpu_center_train.py"
CENTERS = ("device", "host")
DEADLINE_S = 900.0


def start(center: str, gpus: int, folder: str, options: list[str]) -> subprocess.Popen:
    """Start a job whose center is there."""
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(gpus), "-D", "cuda", "--center", center]
    with Path(folder, f"{center}.log").open("w") as output:
        return subprocess.Popen(
            [*command, "--log-dir", f"{folder}/{center}-logs", str(SCRIPT), folder, center, *options],
            env={"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def measure(gpus: int, centers: list[str], rounds: int, batches: int) -> dict[str, list[dict]]:
    """Run the jobs, round by round in turn; returns what each worker wrote, by the place of the center."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rounds", str(rounds), "--batches", str(batches)]
        jobs = {center: start(center, gpus, folder, options) for center in centers}
        deadline = time.monotonic() + DEADLINE_S
        try:
            for number in range(rounds + 1):
                for center in centers if number % 2 else centers[::-1]:
                    Path(folder, f"go-{center}-{number}").touch()
                    done = [Path(folder, f"done-{center}-{number}-{rank}") for rank in range(gpus)]
                    while not all(path.exists() for path in done):
                        if jobs[center].poll() is not None or time.monotonic() > deadline:
                            raise SystemExit(failure(folder, center))
                        time.sleep(0.02)
            for center, job in jobs.items():
                if job.wait(60):
                    raise SystemExit(failure(folder, center))
        finally:
            for job in jobs.values():
                if job.poll() is None:
                    job.terminate()
                    job.wait(60)
        return {
            center: [json.loads(Path(folder, f"{center}-{rank}.json").read_text()) for rank in range(gpus)]
            for center in centers
        }


def failure(folder: str, center: str) -> str:
    """Return why a job did not come to its end."""
    paths = [Path(folder, f"{center}.log"), *sorted(Path(folder, f"{center}-logs").glob("rank*.log"))]
    return "\n".join(path.read_text()[-3000:] for path in paths) + f"\nthe job with its center on {center} FAILED"


def summarize(found: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each model and place of the center."""
    rows = []
    for model in next(iter(found.values()))[0]["step_s"]:
        for center, workers in found.items():
            of = [worker["step_s"][model] for worker in workers]
            steps = {way: [took for each in of for took in each[way]] for way in of[0]}
            row = {"model": model, "center": center, "fits": len(steps["EASGD"])}
            row |= {f"{way} ms": 1e3 * report.median([mean for mean, _ in took]) for way, took in steps.items()}
            for base in ("never", "plain"):
                pairs = list(zip(steps["EASGD"], steps[base]))
                row[f"over {base}, %"] = report.median([100 * (ours[0] / its[0] - 1) for ours, its in pairs])
                row[f"over {base}, tens, %"] = report.median([100 * (ours[1] / its[1] - 1) for ours, its in pairs])
            rows.append(row)
    return rows


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="a worker each  [2]")
    parser.add_argument("--centers", nargs="+", default=CENTERS, choices=CENTERS, help="where they are  [both]")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    args = parser.parse_args()
    rounds, batches = (3, 100) if args.quick else (8, 200)
    found = measure(args.gpus, args.centers, rounds, batches)
    first = found[args.centers[0]][0]
    rows = summarize(found)
    title = f"Keras {first['keras']} on {first['backend']}, {args.gpus} GPUs: a step, and EASGD every 10 batches"
    report.table(title, list(rows[0]), [list(row.values()) for row in rows])
    goals = [
        report.goal(f"EASGD every 10, {row['model']}, % over never", row["over never, %"], 2, at_least=False)
        for row in rows
        if row["center"] == "device"
    ]
    if args.out or not args.quick:
        results = {"keras": first["keras"], "backend": first["backend"], "gpus": args.gpus}
        results |= {"rounds": rounds, "batches": batches, "results": rows, "goals": goals, "workers": found}
        report.save(f"keras-gpu-center-{first['backend']}-{args.gpus}", results, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
