"""The results of `platoon tune`: table, advice, summary, page and picture."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from platoon_base.cli.charts import NO_CHARTS, add_legend, as_svg, has_charts, limit, named
from platoon_base.cli.table import aligned
from platoon_base.cli.trackers.report import document, embedded
from platoon_base.cli.tune import Method, Point, Run, Study, Tuning, Watched, value_at
from platoon_base.frameworks.registered import registered
from platoon_base.job.starting import thread_limits
from platoon_base.system.environment import EVERY_N_BATCHES, RULE

_BUSY = 0.5  # Load average per core.
_SIZE = (10.5, 4.2)  # In inches.
_AXES = (("seconds", "seconds of training"), ("steps", "steps of each worker"))


class Outcome(NamedTuple):
    """All runs of one method; numbers are medians of the runs that did not fail."""

    method: Method
    values: list[float]  # One value for each run; NaN counts as the worst infinity.
    value: float
    steps: float
    seconds: float
    reached: float  # When it first equaled the final value of plain training; infinity if never.
    failed: list[str]
    dropped: bool


def outcomes(study: Study, watched: Watched, by: str) -> list[Outcome]:
    """Group the runs by method, in the order of their first runs; plain training comes first."""
    found: list[Outcome] = []
    for method in dict.fromkeys(run.method for run in study.runs):
        own = [run for run in study.runs if run.method == method]
        good = [run for run in own if not run.failed]
        ends = [run.dropped or value_at(run.points, study.end, by) for run in good]
        points = [end for end in ends if end is not None]
        values = [watched.finite(end.value) for end in points]
        goal = found[0].value if found else _median(values)
        found.append(
            Outcome(
                method,
                values,
                _median(values),
                _median(end.steps for end in points),
                _median(end.seconds for end in points),
                _median((_reached(run.points, goal, watched, by) for run in good), math.inf),
                [run.failed for run in own if run.failed],
                any(run.dropped is not None for run in own),
            )
        )
    return found


def _median(values: Iterable[float], default: float = math.nan) -> float:
    values = list(values)
    return median(values) if values else default


def _reached(points: Sequence[Point], goal: float, watched: Watched, by: str) -> float:
    """Return the steps or seconds after which a curve was first as good as the goal."""
    costs = [watched.cost(point.value) for point in points]
    axis = [float(getattr(point, by)) for point in points]
    first = next((i for i, cost in enumerate(costs) if cost <= watched.cost(goal)), None)
    if first is None:
        return math.inf
    if first == 0 or math.isinf(costs[first - 1]):
        return axis[first]
    falling = [-costs[first - 1], -costs[first]]
    return float(np.interp(-watched.cost(goal), falling, axis[first - 1 : first + 1]))


def choose(
    found: Sequence[Outcome],
    default: Method,
    watched: Watched,
) -> tuple[Outcome | None, str]:
    """Choose a method, and give the reason; None if no method has finished.

    The default stays unless the worst run of the best method is better than the default's best.
    """
    able = [each for each in found if each.values and not each.failed and not each.dropped]
    if not able:
        return None, "no method has finished"
    best = min(able, key=lambda each: watched.cost(each.value))
    own = next((each for each in able if each.method == default), None)
    if best.method.plain:
        return best, "single-process training was best; workers did not help within this budget"
    if own is None or best is own:
        return best, "it was the best"
    if max(map(watched.cost, best.values)) >= min(map(watched.cost, own.values)):
        reason = "had a better median, by less than the seeds differ: keep the defaults"
        return own, f"{best.method.name} {reason}"
    return best, "it was the best" if len(best.values) > 1 else "one run each: try more --seeds"


def lines(tuning: Tuning, study: Study) -> Iterator[str]:
    """Yield the lines of table and advice; none if no run has ended."""
    watched, by = study.watched, tuning.by
    if watched is None:
        return
    found = outcomes(study, watched, by)
    yield from map(str.rstrip, aligned(_rows(found, watched, tuning), 1))
    of_all = "; the median of the seeds" if tuning.seeds > 1 else ""
    yield f"{watched.name}: {_better(watched)} is better{of_all}. Steps are those of each worker."
    if limits := thread_limits(len(tuning.devices), os.environ):
        threads = f"{next(iter(limits.values()))} of {len(os.sched_getaffinity(0))} cores"
        yield (f"Each worker, and plain training, used threads for {threads}; python without platoon uses all.")
    if study.end < tuning.budget:
        after = _spent(study.end, by)
        yield f"Compared after {after}: some runs have reported nothing later."
    if any(each.dropped for each in found):
        yield "Dropped methods were worse than the median; with --no-halving all run to the end."
    yield from (f"WARNING: {text}" for text in _doubts(found, tuning, study.runs))
    best, reason = choose(found, tuning.default, watched)
    if best is None:
        yield f"No recommendation: {reason}."
        return
    yield f"Recommended: {best.method.name} ({reason})."
    yield from _how_to_take(best.method, tuning)


def _rows(found: Sequence[Outcome], watched: Watched, tuning: Tuning) -> list[list[str]]:
    """Return the table of all methods, its head first."""
    spread = ["of the seeds"] if tuning.seeds > 1 else []
    head = [
        "method",
        watched.name,
        *spread,
        "steps",
        "seconds",
        "plain's end after",
        "times sooner",
    ]
    rows = [head]
    for each in found:
        if not each.values:
            rows.append([each.method.name, "failed", *[""] * (len(head) - 2)])
            continue
        span = f"{min(each.values):.4g} to {max(each.values):.4g}" if len(each.values) > 1 else ""
        reached, sooner = "dropped" if each.dropped else "never", "-"
        if not each.dropped and not math.isinf(each.reached):
            reached = _spent(each.reached, tuning.by)
            sooner = f"{found[0].reached / each.reached:.2f}"
        cells = [f"{each.value:.4g}", *([span] if spread else [])]
        numbers = [f"{each.steps:.0f}", f"{each.seconds:.1f}", reached, sooner]
        rows.append([each.method.name, *cells, *numbers])
    return rows


def _spent(amount: float, by: str) -> str:
    return f"{amount:.0f} steps" if by == "steps" else f"{amount:.1f} s"


def _how_to_take(method: Method, tuning: Tuning) -> Iterator[str]:
    """Yield how to use a method in the script, or from outside."""
    launched = shlex.join([*tuning.start.command, *method.words])
    launched = f"platoon launch -n {method.workers} {launched}"
    if method.plain:
        text = "Workers may help in a longer training or at another learning rate: try a larger"
        yield f"{text} {tuning.budget_option}, and see docs/learning.md."
    elif method.words:
        yield f"    {launched}"
    elif method == tuning.default:
        yield "    These are the defaults of the adapters: set neither rule nor every_n_batches."
    else:
        yield f"    from platoon_base.rules import {method.rule.partition('(')[0]}"
        yield f"    rule={method.rule}, every_n_batches={method.period}"
        yield (f"in {', '.join(registered().texts('rule_goes_to'))}. Or without a change of the script:")
        yield f'    {RULE}="{method.rule}" {EVERY_N_BATCHES}={method.period} {launched}'


def _doubts(found: Sequence[Outcome], tuning: Tuning, runs: Sequence[Run]) -> Iterator[str]:
    """Yield why the comparison may be wrong."""
    counted = [run for run in runs if run.method.rule and run.steps * run.syncs and not run.failed]
    rates = [run.syncs / run.steps for run in counted]
    if len({run.method.period for run in counted}) > 1 and max(rates) <= 1.1 * min(rates):
        yield ("the script sets its period, so other periods have no effect: remove it from the script to try others")
    workers, cores = len(tuning.devices), len(os.sched_getaffinity(0))
    if tuning.load > _BUSY * cores:
        yield (
            f"the load was {tuning.load:.1f} on {cores} cores before the first run: other programs "
            "use the machine, so seconds are not comparable; repeat this on an idle machine"
        )
    for each in found:
        if each.dropped or not each.values or not each.reached:
            continue
        if (factor := found[0].reached / each.reached) > workers:
            yield (
                f"{each.method.name} was {factor:.2f} times sooner with {workers} workers. A "
                f"factor above {workers} is not a gain of speed: plain training was disturbed, or "
                f"ended on a bad value. Try more --seeds or a larger {tuning.budget_option}"
            )


def results(tuning: Tuning, study: Study) -> dict[str, Any]:
    """Return all results as plain values for a file; nothing if no run has ended."""
    watched = study.watched
    if watched is None:
        return {}
    found = outcomes(study, watched, tuning.by)
    return {
        "script": tuning.start.command,
        "watched": watched.name,
        "better": _better(watched),
        "budget": {tuning.by: tuning.budget},
        "methods": [{**each._asdict(), "method": each.method.name} for each in found],
        "runs": [{**run._asdict(), "method": run.method.name} for run in study.runs],
    }


def page(tuning: Tuning, study: Study) -> str:
    """Return the page of a study: table, advice and picture in one HTML file."""
    title = " ".join(["platoon tune", *tuning.start.command])
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    facts = f"{len(tuning.devices)} workers, {len(study.runs)} runs, logs in {tuning.folder}"
    notes = [f"A run of {run.method.name} failed." for run in study.runs if run.failed]
    if study.interrupted:
        notes.append("The study was interrupted, so some runs are missing.")
    if study.watched is None:
        notes.append("No run has reported a value to compare.")
    text = "\n".join(lines(tuning, study))
    chart = f'<p class="faint">{escape(NO_CHARTS)}</p>'
    if has_charts() and study.watched is not None:
        chart = f'<div class="wide">{embedded(picture(study, study.watched))}</div>'
    items = "".join(f'<li class="note">{escape(note)}</li>' for note in notes)
    parts = [f'<ul class="verdict">{items}</ul>', f"<pre>{escape(text)}</pre>", chart]
    return document(title, f"{when}, {facts}", parts)


def picture(study: Study, watched: Watched) -> str:
    """Return the values of each method over seconds and steps as SVG.

    Thick curves are medians of the seeds, thin ones the runs; a cross shows a dropped run.
    """
    runs: dict[Method, list[Run]] = {}
    for run in study.runs:
        if run.points and not run.failed:
            runs.setdefault(run.method, []).append(run)

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (axis, label) in zip(panels, _AXES):
            handles = [
                _curves(axes, own, axis, f"C{number % 10}", "-" if number < 10 else "--")
                for number, own in enumerate(runs.values())
            ]
            axes.set_xlabel(label)
        points = [point for own in runs.values() for run in own for point in run.points]
        limit(panels[0], [point.value for point in points])
        panels[0].set_title(f"{named(watched.name)}, {_better(watched)} is better", loc="left")
        dropped = [" (dropped)" if own[0].dropped else "" for own in runs.values()]
        names = [method.name + end for method, end in zip(runs, dropped)]
        add_legend(figure, handles, names)

    return as_svg(draw, _SIZE)


def _curves(axes: Any, runs: Sequence[Run], axis: str, color: str, dash: str) -> Any:
    """Draw the runs of a method and their median; return the median's curve."""
    for run in runs if len(runs) > 1 else ():
        xs, ys = ([getattr(point, name) for point in run.points] for name in (axis, "value"))
        axes.plot(xs, ys, color=color, alpha=0.4, linewidth=0.7)
    if (drop := runs[0].dropped) is not None:
        axes.plot([getattr(drop, axis)], [drop.value], "X", color=color, gid="dropped")
    first = max(run.points[0].steps for run in runs)
    places = sorted({point.steps for run in runs for point in run.points if point.steps >= first})
    last = min(run.points[-1].steps for run in runs)
    ends = [[value_at(run.points, at, "steps") for run in runs] for at in places if at <= last]
    curve = [[_median(getattr(end, by) for end in each) for by in (axis, "value")] for each in ends]
    return axes.plot(*zip(*curve), dash, color=color, linewidth=2, gid="median")[0]


def _better(watched: Watched) -> str:
    return "higher" if watched.higher else "lower"
