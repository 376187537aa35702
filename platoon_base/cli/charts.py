"""Charts of reports as SVG. matplotlib draws them, and is imported with the first chart."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from platoon_base.coordination.story import Entry

INSTALL = "pip install 'platoon-plugins[report]'"
NO_CHARTS = f"The page has no charts because matplotlib is not installed: {INSTALL}"
INK, PAPER = "#24292f", "#ffffff"  # Pages replace them by their own colors.
_STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **{"axes.grid": True, "grid.color": "#8b949e", "grid.alpha": 0.3, "lines.linewidth": 1.3},
    **{"font.size": 9, "font.family": "sans-serif", "text.parse_math": False},
    **{"svg.fonttype": "none", "svg.hashsalt": "platoon"},  # Texts stay texts, and ids repeat.
}
_SIZE = (5.6, 3.4)  # In inches.
_MOST_NAMED, _LONGEST_NAME = 9, 60  # Entries of a legend, and characters of each.
_MOST_POINTS = 300
_LARGEST = 1e100  # Axes with larger values overflow.
_MANY = 40  # With so many values, the highest may lie outside the panel.
_UNITS = ((7200.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_MARKS = {"good": ("o", "#1a7f37", "joined, saved"), "bad": ("X", "#cf222e", "lost")}
_MARKS["note"] = ("^", "#9a6700", "restart, stop")


class Series(NamedTuple):
    """A curve: a name, and pairs of seconds and a value."""

    name: str
    points: Sequence[tuple[float, float]]


def has_charts() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def as_svg(draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    """Return the figure that `draw` fills as an SVG element; `size` is in inches."""
    file = io.StringIO()
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The browser has the fonts that matplotlib may lack.
        import matplotlib.style
        from matplotlib.figure import Figure

        with matplotlib.style.context(["default", _STYLE]):
            figure = Figure(size, layout="constrained")
            draw(figure)
            figure.savefig(file, format="svg", metadata=without)
    text = file.getvalue()
    return text[text.index("<svg") :]


def named(name: str) -> str:
    """Return a name for a legend: shortened, with escapes for characters that XML cannot hold."""
    plain = "".join(each if each.isprintable() else repr(each)[1:-1] for each in name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"


def chart(series: Sequence[Series], from_zero: bool = False) -> str | None:
    """Return curves over time as SVG; None if they have no finite value below 1e100."""
    finite = [
        (each.name, points)
        for each in series
        if (points := [point for point in each.points if abs(point[1]) <= _LARGEST])
    ]
    if not finite:
        return None
    unit, label = _unit(max(x for _, points in finite for x, _ in points))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for _, points in finite:
            shown = [*points[: -1 : 1 + len(points) // _MOST_POINTS], points[-1]]
            xs, ys = [x / unit for x, _ in shown], [y for _, y in shown]
            axes.plot(xs, ys, marker="o" if len(shown) == 1 else "")
        axes.set_xlim(left=0.0)
        axes.set_xlabel(label)
        limit(axes, [y for _, points in finite for _, y in points], from_zero)
        if len(finite) <= _MOST_NAMED:
            add_legend(figure, axes.get_lines(), [name for name, _ in finite])

    return as_svg(draw, _SIZE)


def add_legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Add a legend below the panels; matplotlib would leave out names that begin with "_"."""
    shown = [named(name) for name in names]
    columns = 3 if max(map(len, shown)) <= 14 else 1
    texts = figure.legend(handles, range(len(names)), loc="outside lower left", ncols=columns)
    for text, name in zip(texts.get_texts(), shown):
        text.set_text(name)


def limit(axes: Any, values: Sequence[float], from_zero: bool = False) -> None:
    """Leave out the highest of many values, such as the first losses."""
    values = sorted(value for value in values if abs(value) <= _LARGEST) or [0.0]
    low, high, most = values[0], values[-1], values[int(0.95 * (len(values) - 1))]
    if from_zero:
        axes.set_ylim(bottom=min(low, 0.0))
    if len(values) >= _MANY and high - low > 4 * (most - low) > 0:
        axes.set_ylim(low - 0.1 * (most - low), low + 1.5 * (most - low))


def _unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a time axis that ends there: its seconds and its name."""
    return next((unit, label) for least, unit, label in _UNITS if seconds >= least)


class _Mark(NamedTuple):
    """A moment on the timeline; lane 0 is the job, and `kind` is "good", "note" or "bad"."""

    at: float
    lane: int
    kind: str


def timeline(
    story: Sequence[Entry],
    checkpoints: Sequence[float],
    began_at: float,
    seconds: float,
    ranks: Sequence[int],
) -> str:
    """Return a bar for each of these workers, from its start to its end, with marks for events.

    ``checkpoints`` are in seconds since the start, and the job took ``seconds``.
    """
    end = max([seconds, *(entry.at - began_at for entry in story)])
    unit, label = _unit(end)
    lane_of = {rank: index for index, rank in enumerate(ranks, 1)}
    lives, marks = _events(story, began_at, end, lane_of)
    marks += [_Mark(at, 0, "good") for at in checkpoints]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        lanes, begins, ends = ([each[i] for each in lives] for i in range(3))
        spans = ([at / unit for at in begins], [at / unit for at in ends])
        axes.hlines(lanes, *spans, "#8b949e", linewidth=7, gid="lives")
        handles = []
        for kind, (shape, color, _) in _MARKS.items():
            own = [(mark.at / unit, mark.lane) for mark in marks if mark.kind == kind]
            xs, ys = [x for x, _ in own], [lane for _, lane in own]
            handles += axes.plot(xs, ys, shape, color=color, gid=f"marks-{kind}", clip_on=False)
        axes.set_xlim(0.0, end / unit or 1.0)
        axes.set_ylim(len(ranks) + 0.6, -0.6)
        axes.set_yticks(range(len(ranks) + 1), ["job", *map(str, ranks)])
        axes.set_xlabel(label)
        add_legend(figure, handles, [text for _, _, text in _MARKS.values()])

    return as_svg(draw, (_SIZE[0], 1.2 + 0.2 * (len(ranks) + 1)))


def _events(
    story: Sequence[Entry],
    began_at: float,
    end: float,
    lane_of: dict[int, int],
) -> tuple[list[tuple[int, float, float]], list[_Mark]]:
    """Return the lives of workers, as lane, begin and end, and the marks."""
    lives: list[tuple[int, float, float]] = []
    marks: list[_Mark] = []
    since: dict[int, float] = {}
    for entry in story:
        at = max(0.0, entry.at - began_at)
        if entry.who != "rank":
            if (entry.who, entry.after) != ("job", "starts"):
                bad = entry.after == "lost" or entry.who == "checkpoint"
                marks.append(_Mark(at, 0, "bad" if bad else "note"))
            continue
        for lane in [lane_of[rank] for rank in entry.numbers if rank in lane_of]:
            joined = entry.after in ("joined", "joined late")
            if joined and entry.before.startswith(("expected", "left", "lost")):
                since[lane] = at
                marks.append(_Mark(at, lane, "good"))
            elif entry.after in ("left", "left late", "lost"):
                lives += [(lane, since.pop(lane), at)] if lane in since else []
                marks += [_Mark(at, lane, "bad")] if entry.after == "lost" else []
            elif entry.after == "expected late":
                marks.append(_Mark(at, lane, "note"))
    return [*lives, *((lane, begin, end) for lane, begin in since.items())], marks
