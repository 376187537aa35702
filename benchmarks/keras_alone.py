"""What a fit of Keras 3 costs more as the only worker of a job, with our callbacks, than by plain python.

Two processes are there at the same time and measure in turn, a fit each: one started by python, which knows nothing of
this project, and one by `platoon launch -n 1`, which fits with our callbacks, and with a distributed optimizer too.
Processes differ by several percent from second to second, and a fit by its place in a round; so there are many short
fits, rounds alternate between an order and its reverse, and two of them give one ratio, the geometric mean. Printed are
medians of these with standard errors (bootstrap). From steps and epochs' ends follows an epoch of 469 mini-batches, as
Fashion-MNIST has. Run it once for each back end:

    CUDA_VISIBLE_DEVICES=0 KERAS_BACKEND=torch python benchmarks/keras_alone.py --device cuda [--quick] [--out FOLDER]
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

import numpy as np
import report

SCRIPT = Path(__file__).parent / "scripts" / "keras_alone_train.py"
DEADLINE_S = 600.0
MODELS = ("10 MB", "convolutional")
EPOCH = 469  # mini-batches
GOAL = 0.99  # of the plain fit's speed


def start(process: str, device: str, folder: str, options: list[str]) -> subprocess.Popen:
    """Start one of the two processes on the first device of that kind."""
    command, variables = [sys.executable], {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    if process == "launched":
        place = "cuda0" if device == "cuda" else "cpu"
        command += ["-m", "platoon_base", "launch", "-n", "1", "-D", place, "--log-dir", f"{folder}/logs"]
    with Path(folder, f"{process}.log").open("w") as output:
        return subprocess.Popen(
            [*command, str(SCRIPT), folder, process, *options],
            env={"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def measure(device: str, rounds: int, *options: str) -> dict[str, dict]:
    """Run both processes, round by round in turn; returns what each wrote."""
    names = ["plain", "launched"]
    with tempfile.TemporaryDirectory() as folder:
        processes = {name: start(name, device, folder, ["--rounds", str(rounds), *options]) for name in names}
        deadline = time.monotonic() + DEADLINE_S
        try:
            for number in range(rounds + 1):
                for model in MODELS:
                    for name in names if number % 2 else names[::-1]:
                        Path(folder, f"go-{name}-{model}-{number}").touch()
                        while not Path(folder, f"done-{name}-{model}-{number}").exists():
                            if processes[name].poll() is not None or time.monotonic() > deadline:
                                raise SystemExit(failure(folder, name))
                            time.sleep(0.002)
            for name, process in processes.items():
                if process.wait(60):
                    raise SystemExit(failure(folder, name))
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.terminate()
                    process.wait(60)
        return {name: json.loads(Path(folder, f"{name}.json").read_text()) for name in names}


def failure(folder: str, name: str) -> str:
    """Return why a process did not come to its end."""
    paths = [Path(folder, f"{name}.log"), *sorted(Path(folder, "logs").glob("rank*.log"))]
    texts = [path.read_text()[-3000:] for path in paths if path.exists()]
    return "\n".join([*texts, f"the {name} process FAILED"])


def median_and_error(values: list[float]) -> tuple[float, float]:
    """Return the median over both orders of the values of rounds in turn, and its standard error by the bootstrap."""
    both = np.sqrt(np.array(values[0::2]) * np.array(values[1::2]))
    drawn = np.random.default_rng(0).choice(both, (2000, len(both)))
    return float(np.median(both)), float(np.median(drawn, axis=1).std())


def epoch_s(took: dict[str, list[float]], clock: int) -> float:
    """Return the seconds of an epoch of 469 mini-batches: by time (0) or CPU time (1)."""
    return (EPOCH - 1) * took["step_s"][clock] + took["end_s"][clock]


def summarize(found: dict[str, dict]) -> list[dict]:
    """Return a row for each model and way of the launched process."""
    rows = []
    for model in MODELS:
        plain = found["plain"]["times"][model]["plain"]
        for way, took in found["launched"]["times"][model].items():
            pairs = list(zip(plain, took))
            speed, error = median_and_error([epoch_s(its, 0) / epoch_s(ours, 0) for its, ours in pairs])
            cpu, cpu_error = median_and_error([epoch_s(its, 1) / epoch_s(ours, 1) for its, ours in pairs])
            row = {"model": model, "way": way, "pairs": len(pairs)}
            row |= {"plain step, ms": 1e3 * report.median([its["step_s"][0] for its in plain])}
            row |= {"step, ms": 1e3 * report.median([ours["step_s"][0] for ours in took])}
            row |= {"end +, ms": 1e3 * report.median([ours["end_s"][0] - its["end_s"][0] for its, ours in pairs])}
            row |= {"of plain's speed": speed, "+-": error, "plain's CPU time / ours": cpu, "+- of it": cpu_error}
            rows.append(row)
    return rows


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="what both processes use, the first visible one  [cpu]"
    )
    parser.add_argument("--rounds", type=int, default=50, help="an even number  [50]")
    parser.add_argument("--quick", action="store_true", help="four rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    args = parser.parse_args()
    if args.rounds < 4 or args.rounds % 2:
        parser.error(f"got --rounds {args.rounds}: two rounds in opposite orders give one ratio; give 4, 6 or more")
    quick = ["--batches", "3", "--skipped", "1"]
    found = measure(args.device, 4, *quick) if args.quick else measure(args.device, args.rounds)
    first, rows = found["plain"], summarize(found)
    title = f"Keras {first['keras']} on {first['backend']}, {args.device}: the only worker, and plain"
    report.table(title, list(rows[0]), [list(row.values()) for row in rows])
    goals = [
        report.goal(
            f"{row['way']}, {row['model']}, of the plain fit's speed +- {row['+-']:.2g}", row["of plain's speed"], GOAL
        )
        for row in rows
    ]
    if args.out or not args.quick:
        results = {"keras": first["keras"], "backend": first["backend"], "device": args.device, "results": rows}
        results |= {"goals": goals, "processes": found}
        report.save(f"keras-alone-{first['backend']}-{args.device}", results, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
