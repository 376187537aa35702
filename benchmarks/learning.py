"""How soon N workers learn what one process learns: steps per worker and seconds to targets, on real data.

    KERAS_BACKEND=torch python benchmarks/learning.py --task fashion-mnist [--quick] [--out FOLDER]

Tasks, targets and methods are the tables in scripts/learning_tasks.py. Plain training comes first, with each learning
rate; the best one, by the steps to the highest target, is kept for all methods, multiplied by what a method documents.
Every run makes as many passes over the data. One job runs at a time, each worker with one thread, on the CPU.

All rows are validated on after each pass over the data, which takes a worker 1/N of the steps. So the steps to a target
are interpolated between the validation that reaches it and the one before; else the coarser steps of plain training
would speak for the methods. A target that the first validation has reached counts at its end. Medians are over
the seeds, and a run that never reached the target is the longest of all. Steps per worker hold on any machine; seconds
need as many idle cores as there are workers.

Results are written after each run: a study that is interrupted keeps them. A run that fails is kept as such, and the
others go on; the exit status is 1 then. Keras's environments have no matplotlib; draw the plots with one that has it:

    python benchmarks/learning.py --plot docs/benchmarks/learning-digits.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from importlib import util
from pathlib import Path

import report
from keras_fit import ONE_THREAD, backend
from scripts.learning_tasks import METHODS, PLAIN, TASKS, DataMissing

SCRIPT = Path(__file__).parent / "scripts" / "learning_train.py"
WORKERS, SEEDS = [2, 4], [1, 2, 3, 4, 5]
QUICK_EPOCHS = 8


class Study:
    """The runs of one task so far.

    Attributes
    ----------
    rate : float or None
        The learning rate that plain training does best with, once that is known.
    runs : list of dict
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.task = options, TASKS[options.task]
        self.runs: list[dict] = []
        self.rate: float | None = None

    def run(self) -> None:
        """Run everything: plain training with each learning rate, then the methods with the best one."""
        options = self.options
        for rate in options.rates:
            self._measure(PLAIN, 1, rate)
        self.rate = best_rate(self.runs, self.task.targets)
        print(f"plain training does best with the learning rate {self.rate:g}", flush=True)
        if len(options.rates) > 2 and self.rate in (min(options.rates), max(options.rates)):
            print("WARNING: no rate beyond it was tried: plain may do better still; pass more with --rates", flush=True)
        for count in options.workers:
            for name in options.methods:
                self._measure(name, count, self.rate * METHODS[name].scale(count))

    def _measure(self, method: str, workers: int, rate: float) -> None:
        for seed in self.options.seeds:
            run = {"method": method, "workers": workers, "rate": rate, "seed": seed}
            run.update(self._job(method, workers, rate, seed))
            points = run["curve"]
            run["to_target"] = {f"{target:g}": first_reach(points, target) for target in self.task.targets}
            run["best"] = max((value for _, _, value in points), default=None)
            run["final"] = points[-1][2] if points else None
            run["bytes_sent"] = METHODS[method].bytes_sent
            self.runs.append(run)
            self.save()
            print(f"[{time.monotonic() - BEGAN:5.0f} s] {describe(run)}", flush=True)

    def _job(self, method: str, workers: int, rate: float, seed: int) -> dict:
        """Run one job to its end; returns what rank 0 wrote, or how it failed and an empty curve."""
        with tempfile.TemporaryDirectory() as folder:
            begin = ["launch", "-n", workers, "--log-dir", f"{folder}/logs", SCRIPT, f"{folder}/result.json"]
            words = ["--task", self.options.task, "--method", method, "--rate", rate, "--seed", seed]
            words += ["--epochs", self.options.epochs]
            done = subprocess.run(
                [sys.executable, "-m", "platoon_base", *map(str, [*begin, *words])],
                env={**os.environ, **ONE_THREAD, "KERAS_BACKEND": backend()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return json.loads(Path(folder, "result.json").read_text())
            return {"failed": f"status {done.returncode}: {done.stdout[-2000:]}", "curve": []}

    def results(self) -> dict:
        """Return all that is known so far, as it is written."""
        options = {name: value for name, value in vars(self.options).items() if name not in ("out", "plot")}
        return {
            "backend": backend(),
            "options": options,
            "targets": self.task.targets,
            "batch_size": self.task.batch_size,
            "methods": {name: {"what": each.what, "rate": each.scaling} for name, each in METHODS.items()},
            "best_rate": self.rate,
            "results": summarize(self.runs, self.task.targets, self.rate),
            "runs": self.runs,
        }

    def save(self) -> Path | None:
        """Write the results; returns the path for the plots, or None if nothing is to be kept."""
        if self.options.quick and not self.options.out:
            return None
        return report.save(f"learning-{self.options.task}", self.results(), self.options.out or report.FOLDER)


def first_reach(points: list, target: float) -> dict | None:
    """Return steps and seconds to a target, interpolated between two validations; None if it was never reached."""
    before = None
    for steps, seconds, value in points:
        if value >= target:
            if before is None:
                return {"steps": steps, "seconds": seconds}
            part = (target - before[2]) / (value - before[2])
            return {
                "steps": before[0] + part * (steps - before[0]),
                "seconds": before[1] + part * (seconds - before[1]),
            }
        before = steps, seconds, value
    return None


def median_to(runs: list[dict], target: float, unit: str = "steps") -> float | None:
    """Return the median over runs, in which never is longest; None if that is the median."""
    reaches = [run["to_target"][f"{target:g}"] for run in runs]
    median = report.median([math.inf if reach is None else reach[unit] for reach in reaches])
    return None if math.isinf(median) else median


def best_rate(runs: list[dict], targets: tuple[float, ...]) -> float:
    """Return the rate of plain training with the fewest steps to the highest target, else to the next, or the best."""
    by_rate: dict[float, list[dict]] = {}
    for run in runs:
        if run["method"] == PLAIN and run["curve"]:
            by_rate.setdefault(run["rate"], []).append(run)
    if not by_rate:
        raise SystemExit(f"{runs[-1]['failed']}\nplain training FAILED with every learning rate")

    def order(rate: float) -> tuple[float, ...]:
        steps = [median_to(by_rate[rate], target) for target in reversed(targets)]
        best = report.median([run["best"] for run in by_rate[rate]])
        return (*(math.inf if each is None else each for each in steps), -best)

    return min(by_rate, key=order)


def summarize(runs: list[dict], targets: tuple[float, ...], rate: float | None) -> list[dict]:
    """Return a row for each method, number of workers and learning rate, over the seeds."""
    groups: dict[tuple[str, int, float], list[dict]] = {}
    for run in runs:
        groups.setdefault((run["method"], run["workers"], run["rate"]), []).append(run)
    plain = groups.get((PLAIN, 1, rate), [])
    rows = []
    for (method, workers, own), group in groups.items():
        finished = [run for run in group if run["curve"]]
        row = {"method": method, "workers": workers, "rate": own, "seeds": len(group)}
        row["failed"] = len(group) - len(finished)
        row["to_target"] = {f"{target:g}": to_target(group, plain, target) for target in targets}
        for name in ("best", "final"):
            values = [run[name] for run in finished]
            row[name] = report.median(values) if values else None
            row[f"{name}_range"] = [min(values), max(values)] if values else None
        row["bytes_sent"] = group[0]["bytes_sent"]
        rows.append(row)
    return rows


def to_target(group: list[dict], plain: list[dict], target: float) -> dict:
    """Return how soon runs reached a target, and how many times sooner than plain ones at the best rate."""
    reaches = [run["to_target"][f"{target:g}"] for run in group]
    found: dict = {"reached": sum(reach is not None for reach in reaches)}
    for unit in ("steps", "seconds"):
        values = [reach[unit] for reach in reaches if reach is not None]
        median, alone = median_to(group, target, unit), median_to(plain, target, unit) if plain else None
        found[unit] = median
        found[f"{unit}_range"] = [min(values), max(values)] if values else None
        found[f"times_fewer_{unit}"] = alone / median if alone and median else None
    return found


def describe(run: dict) -> str:
    """Return a line on a run."""
    count = run["workers"]
    what = f"{run['method']}, {count} worker{'s' * (count > 1)}, rate {run['rate']:g}, seed {run['seed']}"
    if not run["curve"]:
        return f"{what} FAILED with {run['failed']}"
    reaches = [
        f"{target} never" if reach is None else f"{target} after {reach['steps']:.0f} steps"
        for target, reach in run["to_target"].items()
    ]
    return f"{what}: {', '.join(reaches)}; best {run['best']:.4f}, final {run['final']:.4f}"


def cell(found: dict, seeds: int) -> str:
    """Return a median with its range, and how many runs never reached the target."""
    missing = "" if found["reached"] == seeds else f"; {seeds - found['reached']} of {seeds} never"
    if found["steps"] is None:
        return "never" if not found["reached"] else missing[2:]
    low, high = found["steps_range"]
    return f"{found['steps']:.0f}" if seeds == 1 else f"{found['steps']:.0f} ({low:.0f} to {high:.0f}{missing})"


def show(results: dict) -> None:
    """Print the table."""
    last = f"{results['targets'][-1]:g}"
    headings = ["method", "workers", "rate", *(f"steps to {target:g}" for target in results["targets"])]
    headings += [f"s to {last}", "x fewer steps", "x sooner", "best", "final", "bytes sent", "failed"]
    rows = []
    for row in results["results"]:
        found = row["to_target"][last]
        rows.append([row["method"], row["workers"], f"{row['rate']:g}"])
        rows[-1] += [cell(each, row["seeds"]) for each in row["to_target"].values()]
        for name in ("seconds", "times_fewer_steps", "times_fewer_seconds"):
            rows[-1].append("-" if found[name] is None else found[name])
        rows[-1] += ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("best", "final")]
        rows[-1] += [row["bytes_sent"], row["failed"] or ""]
    options = results["options"]
    title = f"{options['task']}, Keras on {results['backend']}, {options['epochs']} epochs, seeds {options['seeds']}"
    report.table(f"{title}; medians (ranges)", headings, rows)


def draw(results: dict, path: Path) -> None:
    """Plot accuracy over steps, steps to each target, and the speed-up over the number of workers."""
    figure, (curves, bars, speedups) = report.figure(ncols=3, figsize=(17, 5))
    rows = [row for row in results["results"] if row["method"] != PLAIN or row["rate"] == results["best_rate"]]
    labels = [f"{row['method']}, {row['workers']}" for row in rows]
    draw_curves(curves, rows, results["runs"])
    draw_bars(bars, rows, labels)
    draw_speedups(speedups, rows, f"{results['targets'][-1]:g}")
    figure.suptitle(f"{results['options']['task']}, Keras on {results['backend']}: medians and ranges over the seeds")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def color(method: str) -> str:
    return f"C{list(METHODS).index(method) % 10}"


def draw_curves(axes, rows: list[dict], runs: list[dict]) -> None:
    """Draw the accuracy over steps per worker: the median, and the range in a band."""
    dashes = {
        workers: style for workers, style in zip(sorted({row["workers"] for row in rows}), ("-", "--", ":", "-."))
    }
    for row in rows:
        key = row["method"], row["workers"], row["rate"]
        points = [run["curve"] for run in runs if (run["method"], run["workers"], run["rate"]) == key and run["curve"]]
        if points:
            steps = [point[0] for point in points[0]]
            values = [sorted(point[2] for point in at) for at in zip(*points)]
            look = {"color": color(row["method"]), "linestyle": dashes.get(row["workers"], "-.")}
            axes.plot(steps, [report.median(at) for at in values], label=f"{key[0]}, {key[1]}", **look)
            axes.fill_between(
                steps, [at[0] for at in values], [at[-1] for at in values], alpha=0.15, color=look["color"]
            )
    axes.set_xscale("log")
    axes.set_xlabel("steps per worker")
    axes.set_ylabel("validation accuracy")
    axes.legend(fontsize=8, title="method, workers")


def draw_bars(axes, rows: list[dict], labels: list[str]) -> None:
    """Draw steps to each target; a target that most runs never reach is written in the place of its bar."""
    targets = list(rows[0]["to_target"])
    width = 0.8 / len(targets)
    for i, target in enumerate(targets):
        found = [row["to_target"][target] for row in rows]
        places = [at + (i - (len(targets) - 1) / 2) * width for at in range(len(rows))]
        heights = [each["steps"] or 0 for each in found]
        bars = axes.bar(places, heights, width, color=f"C{i}", alpha=0.8, label=target)
        for bar, each in zip(bars, found):
            middle = bar.get_x() + width / 2
            if each["steps"] is None:
                axes.text(middle, 0, " never", rotation=90, ha="center", va="bottom", fontsize=7)
            else:
                axes.vlines(middle, *each["steps_range"], color="black", linewidth=1)
    axes.set_xticks(range(len(rows)), labels, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("steps per worker to the target")
    axes.legend(fontsize=8, title="accuracy")


def draw_speedups(axes, rows: list[dict], target: str) -> None:
    """Draw how many times fewer steps N workers need, beside the ideal."""
    counts = sorted({row["workers"] for row in rows})
    axes.plot(counts, counts, color="gray", linestyle="--", label="ideal")
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != PLAIN):
        own = [
            (row["workers"], row["to_target"][target]["times_fewer_steps"]) for row in rows if row["method"] == method
        ]
        reached = [point for point in own if point[1] is not None]
        never = [str(count) for count, times in own if times is None]
        label = method + (f" (never with {', '.join(never)})" if never else "")
        axes.plot(*(zip(*reached) if reached else ([], [])), marker="o", color=color(method), label=label)
    axes.set_xticks(counts)
    axes.set_xlabel("workers")
    axes.set_ylabel(f"times fewer steps per worker to {target}")
    axes.legend(fontsize=8)


def settle(options: argparse.Namespace) -> None:
    """Fill in what was not given: from the task, or little of it with --quick."""
    task, quick = TASKS[options.task], options.quick
    options.rates = options.rates or list(task.rates[1:3] if quick else task.rates)
    options.epochs = options.epochs or (QUICK_EPOCHS if quick else task.epochs)
    options.workers = options.workers or (WORKERS[:1] if quick else WORKERS)
    options.seeds = options.seeds or (SEEDS[:1] if quick else SEEDS)
    options.methods = [name for name in options.methods or METHODS if name != PLAIN]


def main(options: argparse.Namespace) -> int:
    """Measure, print, save, draw; returns the exit status."""
    if options.plot:
        draw(json.loads(options.plot.read_text()), options.plot.with_suffix(".png"))
        return 0
    settle(options)
    try:
        TASKS[options.task].data()
    except DataMissing as exc:
        print(exc)
        return 1
    study = Study(options)
    study.run()
    show(study.results())
    path = study.save()
    if path and util.find_spec("matplotlib"):
        draw(study.results(), path)
    elif path:
        print(f"no plots: this Python has no matplotlib; one that has it draws them with --plot {path.stem}.json")
    return int(any("failed" in run for run in study.runs))


BEGAN = time.monotonic()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="beside plain, which always runs  [all]")
    parser.add_argument("--workers", nargs="+", type=int, help=f"numbers of workers  {WORKERS}")
    parser.add_argument("--seeds", nargs="+", type=int, help=f"one run for each  {SEEDS}")
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates of plain training  [the task's]")
    parser.add_argument("--epochs", type=int, help="passes over the data  [the task's]")
    parser.add_argument("--quick", action="store_true", help="few runs; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="only draw the plots of these results")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main(parse()))
