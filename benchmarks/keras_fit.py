"""What the callbacks and the averaged gradients of platoon_plugins.keras cost a fit of two workers.

Each worker's back end has one thread. Fits are made in turn with plain ones, in the same processes, by all workers at
the same time: the step of a fit is the median over tens of batches, each with one synchronization, the first 40 batches
left out; what is more is the median over pairs of fits, one of each kind, made one behind the other. Such fits differ
by several percent even if they are alike ("plain again"), so the goals are judged more closely: within one epoch every
other block of batches runs without our hooks, and a block is compared with its two neighbours. CPU time is less
disturbed by what else runs on the machine, but knows nothing of waiting. The bare all-reduce is that of one array again
and again, which the processor's cache may hold; "cold" is that of the model's arrays, which it does not hold.
Run it once for each back end:

    KERAS_BACKEND=torch python benchmarks/keras_fit.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "keras_train.py"
WORKERS = 2
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
}


def backend() -> str:
    """Return the back end to measure: of KERAS_BACKEND, or the one that this Keras has most likely."""
    return os.environ.get("KERAS_BACKEND") or ("theano" if metadata.version("keras").startswith("2.") else "torch")


def measure(name: str, options: list[str]) -> list[dict]:
    """Run the job; returns what each worker wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(WORKERS), "--log-dir", f"{folder}/logs"]
        done = subprocess.run(
            [*command, str(SCRIPT), folder, *options],
            env={**os.environ, **ONE_THREAD, "KERAS_BACKEND": name},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            logs = "\n".join(path.read_text()[-3000:] for path in sorted(Path(folder, "logs").glob("rank*.log")))
            raise SystemExit(f"{done.stdout}{done.stderr}\n{logs}\nthe job FAILED")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]


def more(pairs: list) -> list[float]:
    """Return the medians of (time and CPU time of a way) - (those of the plain fit)."""
    return [report.median([way[i] - plain[i] for way, plain in pairs]) for i in range(2)]


def percent(pairs: list) -> list[float]:
    """Return the medians of the same differences in percent of the plain fit's."""
    return [report.median([100 * (way[i] / plain[i] - 1) for way, plain in pairs]) for i in range(2)]


def summarize(workers: list[dict]) -> list[dict]:
    """Return a row for each model and way, over the pairs of all workers."""
    rows = []
    for model, first in workers[0]["models"].items():
        of = [worker["models"][model] for worker in workers]
        pairs = {way: [pair for each in of for pair in each["step_s"][way]] for way in first["step_s"]}
        ends = {way: [pair for each in of for pair in each["between_epochs_s"][way]] for way in first["step_s"]}
        for way, mine in pairs.items():
            (wall, cpu), (wall_percent, cpu_percent) = more(mine), percent(mine)
            row = {
                "model": model,
                "parameters": first["parameters"],
                "way": way,
                "pairs": len(mine),
                "plain_step_ms": 1e3 * report.median([plain[0] for each in pairs.values() for _, plain in each]),
                "step_ms": 1e3 * report.median([took[0] for took, _ in mine]),
                "more_percent": wall_percent,
                "more_us": 1e6 * wall,
                "more_cpu_percent": cpu_percent,
                "more_cpu_us": 1e6 * cpu,
                "epoch_end_ms": 1e3 * more(ends[way])[0],
            }
            if way in first["blocks_s"]:
                blocks = [pair for each in of for pair in each["blocks_s"][way]["pairs"]]
                row["in_hooks_us"] = 1e6 * report.median([each["blocks_s"][way]["in_hooks"] for each in of])
                row["blocks_more_percent"], row["blocks_more_cpu_percent"] = percent(blocks)
                row["blocks_more_us"] = 1e6 * more(blocks)[0]
            if way == "EASGD":  # every 10 batches
                row["sync_ms"] = 10e3 * (wall - more(pairs["callbacks"])[0])
            if way == "averaged gradients":
                row["bare_all_reduce_ms"] = 1e3 * report.median([each["all_reduce_s"] for each in of])
                row["cold_all_reduce_ms"] = 1e3 * report.median([each["cold_all_reduce_s"] for each in of])
                row["more_over_bare"] = 1e3 * wall / row["bare_all_reduce_ms"]
                row["more_over_cold"] = 1e3 * wall / row["cold_all_reduce_ms"]
            rows.append(row)
    return rows


COLUMNS = {
    "model": "model",
    "way": "way",
    "plain_step_ms": "plain step, ms",
    "step_ms": "step, ms",
    "more_percent": "more, %",
    "more_us": "more, us",
    "more_cpu_percent": "CPU, %",
    "more_cpu_us": "CPU, us",
    "blocks_more_percent": "in blocks, %",
    "blocks_more_cpu_percent": "CPU, %",
    "blocks_more_us": "us",
    "in_hooks_us": "in hooks, us",
    "epoch_end_ms": "epoch's end, ms",
    "sync_ms": "sync, ms",
    "bare_all_reduce_ms": "bare, ms",
    "cold_all_reduce_ms": "cold, ms",
    "more_over_bare": "more / bare",
    "more_over_cold": "more / cold",
}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    args = parser.parse_args()
    name = backend()
    quick = ["--rounds", "2", "--skipped", "5", "--batches", "10", "--small-times", "2", "--blocks", "2"]
    workers = measure(name, quick if args.quick else [])
    rows = summarize(workers)
    title = f"Keras {workers[0]['keras']} on {name}, {WORKERS} workers; medians"
    report.table(title, list(COLUMNS.values()), [[row.get(key, "") for key in COLUMNS] for row in rows])
    of = {(row["model"], row["way"]): row.get("blocks_more_percent") for row in rows}
    (over,) = [row["more_over_bare"] for row in rows if row["model"] == "10 MB" and "more_over_bare" in row]
    goals = [
        report.goal("callbacks alone, 10 MB of weights, % of a step", of["10 MB", "callbacks"], 1, at_least=False),
        report.goal("EASGD every 10 batches, 10 MB, % of a step", of["10 MB", "EASGD"], 3, at_least=False),
        report.goal(
            "averaged gradients, 10 MB: what a step takes more, over the bare all-reduce", over, 2, at_least=False
        ),
    ]
    if args.out or not args.quick:
        results = {"keras": workers[0]["keras"], "backend": name, "results": rows, "goals": goals}
        report.save(f"keras-{name}", results, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
