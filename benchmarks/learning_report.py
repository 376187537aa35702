"""What benchmarks/learning.py makes of its runs: steps and seconds to targets, a table, and plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import report
from scripts.learning_methods import METHODS, PLAIN

UNITS = ("steps", "seconds")
Target = str  # as the keys of JSON are


class Arm(NamedTuple):
    """What runs that differ in their seeds alone have in common.

    Attributes
    ----------
    method : str
    workers : int
    rate : float
        Learning rate.
    slow : int or None
        The rank that was slowed.
    """

    method: str
    workers: int
    rate: float
    slow: int | None = None

    @classmethod
    def of(cls, run: dict) -> Arm:
        """Return the arm of a run, or of a row of the table."""
        return cls(*(run[name] for name in cls._fields))

    @property
    def label(self) -> str:
        """The arm in a few words."""
        return f"{self.method}, {self.workers}" + ("" if self.slow is None else ", one slow")


def first_reach(points: list, target: float, lower: bool = False) -> dict | None:
    """Return steps and seconds to a target, interpolated between two validations; None if it was never reached.

    Parameters
    ----------
    points : list of (steps, seconds, value)
    target : float
    lower : bool
        Whether lower values are better.
    """
    before = None
    for steps, seconds, value in points:
        if value <= target if lower else value >= target:
            if before is None:
                return {"steps": steps, "seconds": seconds}
            part = (target - before[2]) / (value - before[2])
            return {
                "steps": before[0] + part * (steps - before[0]),
                "seconds": before[1] + part * (seconds - before[1]),
            }
        before = steps, seconds, value
    return None


def median_to(runs: list[dict], target: Target, unit: str = "steps") -> float | None:
    """Return the median over runs, in which never is longest; None if that is the median."""
    reaches = [run["to_target"][target] for run in runs]
    median = report.median([math.inf if reach is None else reach[unit] for reach in reaches])
    return None if math.isinf(median) else median


def best_rate(runs: list[dict], targets: tuple[float, ...], lower: bool = False) -> float:
    """Return the rate of plain training with the fewest steps to the last target, else to the one before, or the best.

    The targets become harder from one to the next.
    """
    by_rate: dict[float, list[dict]] = {}
    for run in runs:
        if run["method"] == PLAIN and run["curve"]:
            by_rate.setdefault(run["rate"], []).append(run)
    if not by_rate:
        raise SystemExit(f"{runs[-1]['failed']}\nplain training FAILED with every learning rate")

    def order(rate: float) -> tuple[float, ...]:
        steps = [median_to(by_rate[rate], f"{target:g}") for target in reversed(targets)]
        best = report.median([run["best"] for run in by_rate[rate]])
        return (*(math.inf if each is None else each for each in steps), best if lower else -best)

    return min(by_rate, key=order)


def summarize(runs: list[dict], targets: tuple[float, ...], rate: float | None) -> list[dict]:
    """Return a row for each arm, over the seeds."""
    arms: dict[Arm, list[dict]] = {}
    for run in runs:
        arms.setdefault(Arm.of(run), []).append(run)
    plain = arms.get(Arm(PLAIN, 1, rate), [])
    rows = []
    for arm, group in arms.items():
        finished = [run for run in group if run["curve"]]
        row: dict[str, Any] = {**arm._asdict(), "seeds": len(group), "failed": len(group) - len(finished)}
        row["seconds_hold"] = all(run["seconds_hold"] for run in [*group, *plain])
        row["to_target"] = {f"{target:g}": to_target(group, plain, f"{target:g}") for target in targets}
        if arm.slow is not None:
            for target, found in row["to_target"].items():
                found.update(slowed(group, arms.get(arm._replace(slow=None), []), target))
        for name in ("best", "final"):
            values = [run[name] for run in finished]
            row[name] = report.median(values) if values else None
            row[f"{name}_range"] = [min(values), max(values)] if values else None
        row["bytes_sent"] = report.median([run["bytes_sent"] for run in finished]) if finished else None
        rows.append(row)
    return rows


def to_target(group: list[dict], plain: list[dict], target: Target) -> dict:
    """Return how soon runs reached a target, and how many times sooner than plain ones at the best rate."""
    reaches = [run["to_target"][target] for run in group]
    found: dict = {"reached": sum(reach is not None for reach in reaches)}
    for unit in UNITS:
        values = [reach[unit] for reach in reaches if reach is not None]
        median, alone = median_to(group, target, unit), median_to(plain, target, unit) if plain else None
        found[unit] = median
        found[f"{unit}_range"] = [min(values), max(values)] if values else None
        found[f"times_fewer_{unit}"] = alone / median if alone and median else None
    return found


def slowed(group: list[dict], unhindered: list[dict], target: Target) -> dict:
    """Return in how many steps of the fast workers' time a target was reached, and what is left of the speed-up.

    A method that waits makes a step in the time in which a fast worker alone would make two.
    """
    steps = median_to(group, target)
    before = median_to(unhindered, target) if unhindered else None
    factor = 2 if METHODS[group[0]["method"]].waits else 1
    share = before / (factor * steps) if before and steps else None
    return {"fast_steps": None if steps is None else factor * steps, "share_of_speedup": share}


def describe(run: dict) -> str:
    """Return a line on a run."""
    count = run["workers"]
    slow = "" if run["slow"] is None else f", rank {run['slow']} slowed"
    what = f"{run['method']}, {count} worker{'s' * (count > 1)}{slow}, rate {run['rate']:g}, seed {run['seed']}"
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


def megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f}"


def number(value: float | None) -> float | str:
    return "-" if value is None else value


def show(results: dict) -> None:
    """Print the table."""
    last = f"{results['targets'][-1]:g}"
    slowed_too = any(row["slow"] is not None for row in results["results"])
    headings = ["method", "workers", "rate", *(f"steps to {target:g}" for target in results["targets"])]
    headings += ["x fewer steps", f"s to {last}", "x sooner", "best", "final", "MB sent", "failed"]
    headings += [f"fast steps to {last}", "share of speed-up"] * slowed_too
    rows = []
    for row in results["results"]:
        found = row["to_target"][last]
        slow = "" if row["slow"] is None else ", slow"
        rows.append([row["method"] + slow, row["workers"], f"{row['rate']:.3g}"])
        rows[-1] += [cell(each, row["seeds"]) for each in row["to_target"].values()]
        rows[-1].append(number(found["times_fewer_steps"]))
        rows[-1] += [number(found[key] if row["seconds_hold"] else None) for key in ("seconds", "times_fewer_seconds")]
        rows[-1] += ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("best", "final")]
        rows[-1] += [megabytes(row["bytes_sent"]), row["failed"] or ""]
        if slowed_too:
            rows[-1] += [number(found.get("fast_steps")), number(found.get("share_of_speedup"))]
    report.table(f"{title(results)}; medians (ranges)", headings, rows, width=190)
    if not all(row["seconds_hold"] for row in results["results"]):
        print("- in place of seconds: several runs at once, or more workers than processors")


def title(results: dict) -> str:
    options = results["options"]
    return f"{options['task']}, {results['framework']}, {options['epochs']} epochs, seeds {options['seeds']}"


def draw(results: dict, path: Path, methods: list[str] | None = None) -> None:
    """Plot the value, the way to each target and the speed-up: over steps, and over seconds where those hold.

    Parameters
    ----------
    results : dict
        As they were read from the file.
    path : Path
    methods : list of str, optional
        Beside plain training; the default are all.
    """
    rows = [row for row in results["results"] if row["method"] != PLAIN or row["rate"] == results["best_rate"]]
    rows = [row for row in rows if not methods or row["method"] in (PLAIN, *methods)]
    timed = [row for row in rows if row["seconds_hold"]]
    panels = [("steps", "steps per worker", rows)]
    panels += [("seconds", "seconds", timed)] * any(row["workers"] > 1 for row in timed)
    figure, grid = report.figure(nrows=len(panels), ncols=3, figsize=(18, 5.5 * len(panels)), squeeze=False)
    for (curves, bars, speedups), (unit, words, shown) in zip(grid, panels):
        draw_curves(curves, shown, results["runs"], UNITS.index(unit))
        curves.set_ylabel(results["value"])
        curves.set_xlabel(words)
        draw_bars(bars, shown, unit)
        bars.set_ylabel(f"{words} to the target")
        target = f"{results['targets'][-1]:g}"
        draw_speedups(speedups, shown, target, unit)
        speedups.set_ylabel(f"times fewer {words} to {target}")
    figure.suptitle(f"{title(results)}: medians and ranges")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def color(method: str) -> tuple[float, ...]:
    """Return the color of a method: the same in all plots, as long as none is added before it."""
    import matplotlib

    known = list(METHODS)
    return matplotlib.colormaps["tab20"](known.index(method) % 20 if method in known else 14)


def draw_curves(axes, rows: list[dict], runs: list[dict], column: int) -> None:
    """Draw the value over a column of the curves: the median over the seeds, and the range in a band."""
    counts = sorted({row["workers"] for row in rows})
    dashes = dict(zip(counts, ("-", "--", ":", "-.")))
    for row in rows:
        arm = Arm.of(row)
        curves = [run["curve"] for run in runs if Arm.of(run) == arm and run["curve"]]
        if curves:
            at = [report.median([point[column] for point in points]) for points in zip(*curves)]
            values = [sorted(point[2] for point in points) for points in zip(*curves)]
            look = {"color": color(arm.method), "linestyle": dashes.get(arm.workers, "-.")}
            look["marker"] = None if arm.slow is None else "v"
            axes.plot(at, [report.median(each) for each in values], label=arm.label, **look)
            low, high = [each[0] for each in values], [each[-1] for each in values]
            axes.fill_between(at, low, high, alpha=0.15, color=look["color"])
    axes.set_xscale("log")
    axes.legend(fontsize=7, title="method, workers")


def draw_bars(axes, rows: list[dict], unit: str) -> None:
    """Draw the way to each target; a target that most runs never reach is written in the place of its bar."""
    targets = list(rows[0]["to_target"])
    width = 0.8 / len(targets)
    for i, target in enumerate(targets):
        found = [row["to_target"][target] for row in rows]
        places = [at + (i - (len(targets) - 1) / 2) * width for at in range(len(rows))]
        bars = axes.bar(places, [each[unit] or 0 for each in found], width, color=f"C{i}", alpha=0.8, label=target)
        for bar, each in zip(bars, found):
            middle = bar.get_x() + width / 2
            if each[unit] is None:
                axes.text(middle, 0, " never", rotation=90, ha="center", va="bottom", fontsize=7)
            else:
                axes.vlines(middle, *each[f"{unit}_range"], color="black", linewidth=1)
    axes.set_xticks(range(len(rows)), [Arm.of(row).label for row in rows], rotation=90, fontsize=7)
    axes.legend(fontsize=8, title="target")


def draw_speedups(axes, rows: list[dict], target: Target, unit: str) -> None:
    """Draw how many times fewer steps or seconds N workers need, beside the ideal."""
    counts = sorted({row["workers"] for row in rows})
    axes.plot(counts, counts, color="gray", linestyle="--", label="ideal")
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != PLAIN):
        own = [
            (row["workers"], row["to_target"][target][f"times_fewer_{unit}"])
            for row in rows
            if row["method"] == method and row["slow"] is None
        ]
        reached = [point for point in own if point[1] is not None]
        never = [str(count) for count, times in own if times is None]
        label = method + (f" (never with {', '.join(never)})" if never else "")
        axes.plot(*(zip(*reached) if reached else ([], [])), marker="o", color=color(method), label=label)
    axes.set_xticks(counts)
    axes.set_xlabel("workers")
    axes.legend(fontsize=7)
