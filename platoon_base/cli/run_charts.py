"""The drawings of the page about a job: curves over time, and the lives of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from platoon_base.cli.svg import COLORS, WIDTH, Drawing, Scale, thinned, xml_text
from platoon_base.coordination.story import Entry

__all__ = ["Series", "chart", "timeline"]

_LEFT, _RIGHT, _TOP, _HEIGHT = 52, 410, 10, 180
_LANE, _LINE = 18, 16
_COLUMNS = ((3, 14), (2, 24), (1, 50))  # of a legend, and the characters for which each has room
_MOST_NAMED = 9
_LARGEST = 1e300  # differences of larger values overflow
_MANY = 40  # values, of which the highest may lie on the border
_MOST_MARKS = 400
_UNITS = ((7200.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


class Series(NamedTuple):
    """A curve: pairs of seconds and a value."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, series: Sequence[Series], from_zero: bool = False) -> Drawing | None:
    """Draw curves over time; return None if there is nothing finite to draw, and below 1e300.

    Values much higher than most lie on the border, such as the first losses of a training.
    """
    drawn = [
        Series(each.name, points)
        for each in series
        if (points := [point for point in each.points if abs(point[1]) <= _LARGEST])  # NaN is not
    ]
    if not drawn:
        return None
    vertical = _value_axis(sorted(value for each in drawn for _, value in each.points), from_zero)
    horizontal, label, unit = _time_axis(max(x for each in drawn for x, _ in each.points))
    bottom, names = _TOP + _HEIGHT, tuple(each.name for each in drawn)
    parts = [f'<path class="grid" d="M{_LEFT},{_TOP}V{bottom}H{_RIGHT}"/>']
    for tick in vertical.ticks():
        height = vertical(tick)
        parts.append(f'<path class="grid" d="M{_LEFT},{height:.1f}H{_RIGHT}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 5}" y="{height + 4:.1f}">{tick:.4g}</text>')
    parts += _time_ticks(horizontal, label, unit, bottom)
    for index, each in enumerate(drawn):
        pixels = [(horizontal(x / unit), vertical(y)) for x, y in thinned(each.points)]
        parts += _curve(each.name, pixels, COLORS[index % len(COLORS)])
    rows, legend = _legend(names, bottom + 52) if len(names) <= _MOST_NAMED else (0, [])
    return Drawing(title, names, bottom + 40 + _LINE * rows, "\n".join([*parts, *legend]))


def _legend(names: Sequence[str], top: float) -> tuple[int, list[str]]:
    """Return the number of lines of a legend, and its elements: as many names in a line as the longest one allows."""
    longest = max(map(len, names))
    columns, most = next((each for each in _COLUMNS if longest <= each[1]), _COLUMNS[-1])
    parts = []
    for index, name in enumerate(names):
        left, low = _LEFT + index % columns * 360 // columns, top + _LINE * (index // columns)
        shown = name if len(name) <= most else f"{name[: most - 1]}…"
        parts.append(f'<path class="curve" stroke="{COLORS[index % len(COLORS)]}" d="M{left},{low - 4}h16"/>')
        parts.append(f'<text x="{left + 20}" y="{low}">{xml_text(shown)}</text>')
    return -(-len(names) // columns), parts


def _curve(name: str, pixels: Sequence[tuple[float, float]], color: str) -> list[str]:
    """Return a curve, or a point if there is only one."""
    named = f"<title>{xml_text(name)}</title>"
    if len(pixels) == 1:
        return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}">{named}</circle>' for x, y in pixels]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    return [f'<polyline class="curve" stroke="{color}" points="{points}">{named}</polyline>']


def _value_axis(values: Sequence[float], from_zero: bool) -> Scale:
    """Return the scale for values in ascending order."""
    low, high = min(values[0], 0.0) if from_zero else values[0], values[-1]
    most = values[int(0.95 * (len(values) - 1))]
    if len(values) >= _MANY and high - low > 4 * (most - low) > 0:
        high = low + 1.5 * (most - low)
    margin = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return Scale(low if from_zero else low - margin, high + margin, _TOP + _HEIGHT, _TOP)


def _time_axis(seconds: float) -> tuple[Scale, str, float]:
    """Return the scale of a time axis that ends there, its unit in words, and the unit's seconds."""
    _, unit, label = next(each for each in _UNITS if seconds >= each[0])
    return Scale(0.0, seconds / unit or 1.0, _LEFT, _RIGHT), label, unit


def _time_ticks(horizontal: Scale, label: str, unit: float, bottom: float) -> list[str]:
    parts = []
    for tick in horizontal.ticks():
        parts.append(f'<text class="middle" x="{horizontal(tick):.1f}" y="{bottom + 15}">{tick:.6g}</text>')
    parts.append(f'<text class="middle" x="{(_LEFT + _RIGHT) / 2}" y="{bottom + 31}">{label}</text>')
    return parts


class _Mark(NamedTuple):
    """A moment on the timeline; ``kind`` is "good", "note" or "bad"."""

    at: float
    lane: int  # 0 for the job
    kind: str
    text: str


def timeline(
    story: Sequence[Entry], checkpoints: Sequence[float], began_at: float, seconds: float, ranks: Sequence[int]
) -> str:
    """Return a figure with a line for each worker, from where it joins to its end, and marks for what happened.

    Parameters
    ----------
    story : sequence of Entry
    checkpoints : sequence of float
        Seconds since the start.
    began_at : float
        The start, in seconds since the epoch.
    seconds : float
        The length of the job.
    ranks : sequence of int
        The workers that are shown.
    """
    end = max([seconds, *(entry.at - began_at for entry in story)])
    horizontal, label, unit = _time_axis(end)
    lane_of = {rank: index for index, rank in enumerate(ranks, 1)}
    lives, marks = _events(story, began_at, end, lane_of)
    marks += [_Mark(at, 0, "good", "checkpoint saved") for at in checkpoints]
    bottom = _TOP + _LANE * (len(ranks) + 1)
    title = "Workers that joined, ended, were lost and started again"
    parts = [
        f'<figure class="lives"><svg viewBox="0 0 {WIDTH} {bottom + 40}" role="img"><title>{title}</title>',
        f'<path class="grid" d="M{_LEFT},{bottom}H{_RIGHT}"/>',
        f'<text class="end" x="{_LEFT - 5}" y="{_TOP + 12}">job</text>',
    ]
    for rank, lane in lane_of.items():
        parts.append(f'<text class="end" x="{_LEFT - 5}" y="{_TOP + _LANE * lane + 12}">{rank}</text>')
    for lane, begin, until in lives:
        left, top = horizontal(begin / unit), _TOP + _LANE * lane + 4
        wide = max(horizontal(until / unit) - left, 1.0)
        parts.append(f'<rect class="life" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="9" rx="2"/>')
    for mark in thinned(marks, _MOST_MARKS):
        x, y = horizontal(mark.at / unit), _TOP + _LANE * mark.lane + 8.5
        tip = f"<title>{xml_text(mark.text)}, {mark.at:.1f} s</title>"
        parts.append(f'<path class="{mark.kind}" d="{_shape(mark.kind, x, y)}">{tip}</path>')
    parts += _time_ticks(horizontal, label, unit, bottom)
    keys = (("good", "joined, saved"), ("note", "started again, stops"), ("bad", "lost"))
    key = "".join(
        f'<span class="key"><svg viewBox="0 0 14 14"><path class="{kind}" d="{_shape(kind, 7, 7)}"/></svg>{text}</span>'
        for kind, text in keys
    )
    return "\n".join([*parts, f'</svg></figure><p class="faint">{key}</p>'])


def _shape(kind: str, x: float, y: float) -> str:
    """Return the path of a mark: a point, a triangle or a cross."""
    if kind == "good":
        return f"M{x - 3:.1f},{y:.1f}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0"
    if kind == "note":
        return f"M{x - 5:.1f},{y + 4:.1f}h10l-5,-9z"
    return f"M{x - 5:.1f},{y - 3:.1f}l2,-2l3,3l3,-3l2,2l-3,3l3,3l-2,2l-3,-3l-3,3l-2,-2l3,-3z"


def _events(
    story: Sequence[Entry], began_at: float, end: float, lane_of: dict[int, int]
) -> tuple[list[tuple[int, float, float]], list[_Mark]]:
    """Return the lives of workers, as lane, begin and end, and the marks."""
    lives: list[tuple[int, float, float]] = []
    marks: list[_Mark] = []
    since: dict[int, float] = {}
    for entry in story:
        at = max(0.0, entry.at - began_at)
        text = entry.line.partition("  ")[2]
        if entry.who != "rank":
            if (entry.who, entry.after) != ("job", "starts"):
                bad = entry.after == "lost" or entry.who == "checkpoint"
                marks.append(_Mark(at, 0, "bad" if bad else "note", text))
            continue
        for lane in [lane_of[rank] for rank in entry.numbers if rank in lane_of]:
            if entry.after in ("joined", "joined late") and entry.before.startswith(("expected", "left", "lost")):
                since[lane] = at
                marks.append(_Mark(at, lane, "good", text))
            elif entry.after in ("left", "left late", "lost"):
                lives += [(lane, begin, at) for begin in [since.pop(lane, None)] if begin is not None]
                marks += [_Mark(at, lane, "bad", text)] if entry.after == "lost" else []
            elif entry.after == "expected late":
                marks.append(_Mark(at, lane, "note", text))
    return [*lives, *((lane, begin, end) for lane, begin in since.items())], marks
