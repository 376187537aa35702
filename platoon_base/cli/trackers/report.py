"""The option ``--report`` of `platoon launch`: an HTML page with a diagnosis, and curves as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import click

from platoon_base.cli.charts import INK, NO_CHARTS, PAPER, Series, chart, has_charts, timeline
from platoon_base.cli.commands.arguments import result_file
from platoon_base.cli.observers import Observed, Option
from platoon_base.cli.run_files import write_text
from platoon_base.cli.run_recorder import (
    SHOWN,
    Lane,
    RunRecorder,
    Shares,
    Straggler,
    Value,
    find_straggler,
    percent,
    rates,
    seconds_text,
)
from platoon_base.cli.table import duration
from platoon_base.cli.worker_output import name_workers
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.coordination.story import Entry
from platoon_base.shm.phases import COMPUTE, LOADING, PARTS, SYNC, quantile

_MOST_ROWS, _MOST_CHARTS = 64, 12
_QUANTILES = (0.5, 0.9, 0.99)
_OF_A_SET = re.compile(r"^(val|valid|validation|train|training|test|center)[_ /-]")
_STYLE = """
:root { color-scheme: light dark;
--paper: #ffffff; --ink: #24292f; --faint: #57606a; --line: #d0d7de; }
:root { --soft: #f6f8fa;
--compute: #2e9e5b; --synchronization: #3b7dd8; --waiting: #c9504a; --loading: #e07b00; --validation: #8a63d2;
--good: #1a7f37; --note: #9a6700; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d;
--soft: #151b23; --good: #3fb950; --note: #d29922; --bad: #f85149; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1280px; background: var(--paper); color: var(--ink);
font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 28px 0 8px; }
p { margin: 4px 0; } .faint { color: var(--faint); }
.verdict { list-style: none; margin: 12px 0; padding: 0; }
.verdict li { border-left: 4px solid; padding: 4px 10px; margin: 6px 0; background: var(--soft); }
.verdict li { overflow-wrap: anywhere; } .verdict .good { border-color: var(--good); }
.verdict .note { border-color: var(--note); } .verdict .bad { border-color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } th[colspan] { text-align: center; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.bars { margin: 8px 0 16px; display: grid; grid-template-columns: max-content 1fr; gap: 4px 10px; align-items: center; }
.bar { display: flex; height: 20px; border-radius: 3px; overflow: hidden; background: var(--soft); }
.bar span { overflow: hidden; color: #fff; font-size: 12px; line-height: 20px; text-align: center; }
.key { display: inline-block; white-space: nowrap; margin-right: 14px; }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.lives { max-width: 600px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 16px; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
details { margin: 12px 0; } pre { overflow-x: auto; font-size: 13px; }
"""


def document(title: str, facts: str, parts: Iterable[str]) -> str:
    """Return an HTML document with a heading, a line of facts, and parts that are HTML."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(facts)}</p>',
        *parts,
        "</body></html>",
        "",
    ]
    return "\n".join(lines)


def embedded(svg: str) -> str:
    """Return an SVG chart in the colors of the page."""
    return svg.replace(INK, "currentColor").replace(PAPER, "none")


def page(recorder: RunRecorder, job: Observed, result: Result | None) -> str:
    """Return the page about a job that has ended; without matplotlib it has no charts.

    ``result`` is None if the job could not be run to its end.
    """
    lanes, story = recorder.lanes, job.story.entries
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recorder.began_at))
    count = f"{len(lanes)} worker{'s' * (len(lanes) != 1)}"
    facts = f"{when}, {count}, {duration(recorder.seconds)}, logs in {job.folder}"
    curves = lives = f'<p class="faint">{escape(NO_CHARTS)}</p>'
    if has_charts():
        drawn = "\n".join(_charts(recorder)) or '<p class="faint">Nothing was reported.</p>'
        curves = f'<div class="charts">\n{drawn}\n</div>'
        shown = sorted(lanes)[:_MOST_ROWS]
        moments = (recorder.checkpoints, recorder.began_at, recorder.seconds)
        lives = f'<div class="lives">{embedded(timeline(story, *moments, shown))}</div>'
    parts = [
        _verdict_list(verdict(lanes, result, story)),
        *_time_of_workers(lanes),
        *_steps(lanes),
        "<h2>Curves</h2>",
        curves,
        "<h2>What happened</h2>",
        lives,
        _story(story),
    ]
    return document(job.command, facts, parts)


def _verdict_list(sentences: Iterable[Sentence]) -> str:
    items = "".join(f'<li class="{each.level}">{escape(each.text)}</li>' for each in sentences)
    return f'<ul class="verdict">{items}</ul>'


def _time_of_workers(lanes: Mapping[int, Lane]) -> list[str]:
    """Return the bars of the workers' time, and the table of the same numbers."""
    keys = "".join(f'<span class="key"><i style="background: var(--{name})"></i>{name}</span>' for name in SHOWN)
    bars, rows = [], []
    for lane in _first(lanes):
        total = lane.shares.total
        percents = [100 * seconds / total if total else 0.0 for seconds in lane.shares]
        shown = list(zip(SHOWN, percents))
        pieces = "".join(
            f'<span style="width: {percent:.3f}%; background: var(--{name})" title="{name} {percent:.1f} %">'
            f"{f'{percent:.0f} %' if percent >= 8 else ''}</span>"
            for name, percent in shown
        )
        bars.append(f'<div>worker {lane.rank}</div><div class="bar">{pieces}</div>')
        loss = next((point.loss for point in reversed(lane.points) if not math.isnan(point.loss)), math.nan)
        numbers = [
            str(lane.steps),
            f"{lane.steps / total:.1f}" if total else "-",
            "-" if math.isnan(loss) else f"{loss:.4g}",
            *("-" if name == "loading" and not lane.has_loading else f"{percent:.1f} %" for name, percent in shown),
        ]
        rows.append([f"worker {lane.rank} {lane.device}", *numbers])
    names = ["", "steps", "steps/s", "latest loss", *SHOWN]
    heads = "".join(f"<th>{name}</th>" for name in names)
    return [
        "<h2>Time of each worker, from its first step</h2>",
        f"<p>{keys}</p>",
        f'<div class="bars">{"".join(bars)}</div>',
        _left_out(lanes),
        _table([heads], rows),
    ]


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; ``heads`` are cells in HTML, ``rows`` texts."""
    lines = [*heads, *("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _first(lanes: Mapping[int, Lane]) -> list[Lane]:
    return [lanes[rank] for rank in sorted(lanes)[:_MOST_ROWS]]


def _left_out(lanes: Mapping[int, Lane]) -> str:
    more = len(lanes) - _MOST_ROWS
    return f'<p class="faint">and {more} more workers</p>' if more > 0 else ""


def _steps(lanes: Mapping[int, Lane]) -> list[str]:
    """Return the table of percentiles of a step's parts."""
    counted = [lane for lane in _first(lanes) if lane.counts.any()]
    if not counted:
        return []
    named = {"compute": "compute", "sync": "synchronization", "waiting": "waiting", "loading": "loading"}
    heads = "".join(f'<th colspan="3">{named[part]}</th>' for part in PARTS)
    below = "<th>median</th><th>90 %</th><th>99 %</th>" * len(PARTS)
    rows = []
    for lane in counted:
        times = [
            "-" if part == "loading" and not lane.has_loading else seconds_text(quantile(counts.tolist(), share))
            for part, counts in zip(PARTS, lane.counts)
            for share in _QUANTILES
        ]
        rows.append([f"worker {lane.rank}", *times])
    return [
        "<h2>Time of one step</h2>",
        _table([f"<th></th>{heads}", f"<th></th>{below}"], rows),
        '<p class="faint">90 % of the steps take no longer than the second number. The numbers '
        "are accurate to a fifth, because steps are counted in classes of time. Synchronization "
        "includes the waits within collective calls on arrays.</p>",
    ]


def _charts(recorder: RunRecorder) -> Iterator[str]:
    """Draw losses, reported values and rates."""
    lanes = _first(recorder.lanes)
    losses = [[(point.at, point.loss) for point in lane.points] for lane in lanes]
    names = [f"worker {lane.rank}" for lane in lanes]
    first = _figure("Training loss", chart([*map(Series, names, losses)]))
    yield from first
    # A training loss that is reported too would be drawn twice.
    values = {name: each for name, each in recorder.values.items() if name != "loss" or not first}
    for title, series in _values_by_chart(values):
        yield from _figure(title, chart(series))
    speeds = [*map(Series, names, map(rates, lanes))]
    yield from _figure("Steps per second", chart(speeds, from_zero=True))


def _figure(title: str, svg: str | None) -> list[str]:
    """Return a chart below its title; nothing if there is no chart."""
    if svg is None:
        return []
    return [f"<figure><figcaption>{escape(title)}</figcaption>\n{embedded(svg)}</figure>"]


def _values_by_chart(values: Mapping[str, Sequence[Value]]) -> list[tuple[str, list[Series]]]:
    """Return reported values by chart: those of several sets of data, such as loss and val_loss, share one."""
    groups: dict[str, list[Series]] = {}
    for name, points in values.items():
        groups.setdefault(_OF_A_SET.sub("", name), []).append(Series(name, [(each.at, each.value) for each in points]))
    named = [(title if len(series) > 1 else series[0].name, series) for title, series in groups.items()]
    return named[:_MOST_CHARTS]


def _story(story: Sequence[Entry]) -> str:
    lines = "\n".join(escape(entry.line) for entry in story)
    summary = "<summary>All events, as platoon jobs --story shows them</summary>"
    return f"<details>{summary}<pre>{lines}</pre></details>"


_NOTABLE, _HIGH = 0.1, 0.25  # Shares of a worker's time.
_LEAST_STEPS = 3
_PHRASES = {
    "synchronization": "synchronization",
    "waiting": "waiting for other workers",
    "loading": "waiting for batches",
    "validation": "validation",
}
_ADVICE = {
    "synchronization": "Synchronize less often (a larger every_n_batches, or a rule that makes "
    "several local steps), or use larger batches",
    "waiting": "Find the cause of the slow worker, below. If no worker is slow, the batches of "
    "one step take unequal times: use a rule that does not wait (CenterMomentum, "
    "EASGD)",
    "loading": "Load ahead (platoon_base.data.load_ahead, or more processes of the loader), or read from a faster disk",
    "validation": "Validate less often, on fewer batches, or on all workers (each on its shard)",
}


class Sentence(NamedTuple):
    """A sentence of the verdict; ``level`` is "good", "note" or "bad"."""

    level: str
    text: str


def verdict(lanes: Mapping[int, Lane], result: Result | None, story: Sequence[Entry]) -> list[Sentence]:
    """Return how a job went, the most important first; ``result`` is None if it has none."""
    timed = {rank: lane for rank, lane in lanes.items() if lane.shares.total > 0}
    found = [_outcome(result), *_of_time(timed)]
    straggler = straggler_of(timed)
    if straggler is not None:
        found.append(Sentence("bad", f"{straggler.line[0].upper()}{straggler.line[1:]}."))
    elif len(timed) > 1:
        found.append(Sentence("good", "No worker is slower than the others."))
    return [*found, *_of_losses(result, story)]


def _outcome(result: Result | None) -> Sentence:
    if result is None:
        return Sentence("bad", "The job did not run to its end: see the output of the launcher.")
    after = f"after {duration(result.seconds)}: {result.stopped_by}"
    if result.interrupted:
        return Sentence("note", f"The job was stopped {after}.")
    if result.status:
        return Sentence("bad", f"The job ended with status {result.status} {after}.")
    return Sentence("good", f"The job succeeded {after}.")


def _of_time(lanes: Mapping[int, Lane]) -> list[Sentence]:
    """Return sentences about the phases in which workers do not compute."""
    if not lanes:
        return [Sentence("note", "No worker has counted steps (Worker.progress), so the use of its time is unknown.")]
    total = Shares()
    for lane in lanes.values():
        total = total.plus(lane.shares)
    unknown = not any(lane.has_loading for lane in lanes.values())
    with_loading = " (including loading, which the loop does not measure)" if unknown else ""
    computing = f"The workers computed for {percent(total.compute / total.total)} of their time{with_loading}"
    found = []
    for name, phrase in _PHRASES.items():
        worst = max(lanes.values(), key=lambda lane: getattr(lane.shares, name) / lane.shares.total)
        share = getattr(worst.shares, name) / worst.shares.total
        if share >= _NOTABLE:
            high = share >= _HIGH
            mean = f", and {percent(getattr(total, name) / total.total)} of all workers'" if len(lanes) > 1 else ""
            advised = f". {_ADVICE[name]}" if high else ""
            text = f"{percent(share)} of rank {worst.rank}'s time is {phrase}{mean}{advised}."
            found.append((share, Sentence("bad" if high else "note", text)))
    found.sort(key=lambda each: -each[0])
    rest = "" if found else "; every other phase takes less than a tenth of each worker's time"
    level = "note" if found else "good"
    return [*(sentence for _, sentence in found), Sentence(level, f"{computing}{rest}.")]


def straggler_of(lanes: Mapping[int, Lane]) -> Straggler | None:
    """Return the worker that was slower than the others over the whole job, if there is one."""
    made = {rank: lane for rank, lane in lanes.items() if lane.steps > _LEAST_STEPS}
    per_step, waiting = {}, {}
    for rank, lane in made.items():
        seconds = [0.0] * 6
        seconds[COMPUTE], seconds[LOADING] = lane.shares.compute, lane.shares.loading
        seconds[SYNC] = 0.0 if lane.calls_collectives else lane.shares.synchronization
        per_step[rank] = tuple(each / lane.steps for each in seconds)
        waiting[rank] = lane.shares.waiting / lane.shares.total
    return find_straggler(per_step, {rank: lane.has_loading for rank, lane in made.items()}, waiting)


def _of_losses(result: Result | None, story: Sequence[Entry]) -> list[Sentence]:
    """Return sentences about workers and hosts that were lost, restarts and checkpoints."""
    found = []
    lost: dict[str, list[int]] = {}
    for entry in story:
        if entry.who == "rank" and entry.after == "lost":
            lost.setdefault(entry.why, []).extend(entry.numbers)
    for why, ranks in lost.items():
        found.append(
            Sentence("bad", f"{name_workers(sorted(set(ranks))).capitalize()} failed: {why or 'unknown why'}.")
        )
    hosts = sorted({host for entry in story if (entry.who, entry.after) == ("host", "lost") for host in entry.numbers})
    if hosts:
        found.append(Sentence("bad", f"Host{'s' * (len(hosts) > 1)} {', '.join(map(str, hosts))} lost."))
    if result is not None and result.restarts:
        found.append(Sentence("note", f"{result.restarts} restart{'s' * (result.restarts > 1)}."))
    if result is not None and result.checkpoints is not None and result.checkpoints.missed:
        found.append(Sentence("bad", f"{result.checkpoints.missed} checkpoints missed: {result.checkpoints.unsaved}."))
    return found


_option = click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    callback=result_file,
    help="At the end write an HTML page with curves, the time of each worker by phase, and a "
    "diagnosis. The curves are also written as CSV beside it. The charts need "
    "platoon-plugins[report].",
)


class RunReport:
    """Records a job, and writes its page and CSV files at the end."""

    name, limit_s = "the report", None

    def __init__(self, path: Path, job: Observed) -> None:
        self._path, self._job = path, job
        self.opening = "" if has_charts() else NO_CHARTS
        self.recorder = RunRecorder()

    def take(self, snapshot: Snapshot) -> None:
        self.recorder.take(snapshot, time.monotonic())

    def close(self, result: Result | None = None) -> None:
        """Write the page and the curves; report on standard error which file cannot be written."""
        self.recorder.end()
        write_text(self._path, page(self.recorder, self._job, result), "the report")
        write_text(self._beside("workers"), workers_as_csv(self.recorder), "the workers' curves")
        write_text(self._beside("values"), values_as_csv(self.recorder), "the reported values")

    def _beside(self, what: str) -> Path:
        return self._path.with_name(f"{self._path.stem}_{what}.csv")


def workers_as_csv(recorder: RunRecorder) -> str:
    """Return the curves of all workers as CSV, with a line for each moment and worker."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "rank", "epoch", "steps", "loss", *(f"{name}_seconds" for name in SHOWN)])
    for rank in sorted(recorder.lanes):
        for at, epoch, steps, loss, shares in recorder.lanes[rank].points:
            times = [f"{seconds:.6g}" for seconds in shares]
            rows.writerow([f"{at:.3f}", rank, epoch, steps, "" if math.isnan(loss) else f"{loss:.9g}", *times])
    return file.getvalue()


def values_as_csv(recorder: RunRecorder) -> str:
    """Return the reported values as CSV, with a line for each."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "mean_steps", "name", "value"])
    for name, values in recorder.values.items():
        rows.writerows([f"{each.at:.3f}", f"{each.steps:.1f}", name, f"{each.value:.9g}"] for each in values)
    return file.getvalue()


OPTION = Option(_option, "report_file", RunReport)
