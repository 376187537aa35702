"""The picture of `platoon tune`: the value of each method against seconds and steps, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from platoon_base.cli.halving import Rung
from platoon_base.cli.study import Method, Point, Trial, Watched, number, value_at
from platoon_base.cli.svg import COLORS, Scale, thinned, xml_text

__all__ = ["picture"]

_DASHES = ("", "8 4", "2 3")  # with more methods than colors
# Without CSS variables, which viewers other than browsers do not know.
_STYLE = """
.paper { fill: #ffffff; } text { font: 13px sans-serif; fill: #24292f; } .grid, .rung { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117; } text { fill: #e6edf3; } .grid, .rung { stroke: #3d444d; }
}
.end { text-anchor: end; } .middle { text-anchor: middle; } .rung { stroke-dasharray: 4 4; stroke-width: 2; }
.grid, .rung, .median, .run, .drop { fill: none; }
.median { stroke-width: 2; stroke-linejoin: round; } .run { opacity: 0.45; } .drop { stroke-width: 2.5; }
"""
_LEFT, _TOP, _WIDTH, _HEIGHT, _BETWEEN, _LINE = 70, 40, 400, 280, 70, 20
_AXES = (("seconds", "seconds of training"), ("steps", "steps of each worker"))


def picture(title: str, trials: Sequence[Trial], watched: Watched, rungs: Sequence[Rung], by: str) -> str:
    """Return an SVG picture with a panel for seconds and one for steps, in light and dark colors.

    The thick curve of a method is the median of its runs after as many steps, as far as all have come; each of several
    runs is a thin one. A cross shows where a method was dropped, a dashed line a moment at which methods were compared.
    Values much worse than the worst one of plain training lie on the border.

    Parameters
    ----------
    title : str
    trials : sequence of Trial
    watched : Watched
    rungs : sequence of Rung
    by : {"steps", "seconds"}
        The unit of the rungs.
    """
    runs: dict[Method, list[Trial]] = {}
    for trial in trials:
        if trial.curves.get(watched.name) and not trial.failed:
            runs.setdefault(trial.method, []).append(trial)
    low, high = _range(trials, watched)
    across = _LEFT + 2 * _WIDTH + _BETWEEN + 30
    down = _TOP + _HEIGHT + 60 + _LINE * len(runs)
    better = "higher" if watched.higher else "lower"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" width="{across}" role="img">',
        f"<title>{xml_text(title)}</title><style>{_STYLE}</style>",
        f'<rect class="paper" width="{across}" height="{down}"/>',
        f'<text x="{_LEFT}" y="24">{xml_text(title)}: {xml_text(watched.name)}, {better} is better</text>',
    ]
    vertical = Scale(low, high, _TOP + _HEIGHT, _TOP)
    for panel, (axis, label) in enumerate(_AXES):
        left = _LEFT + panel * (_WIDTH + _BETWEEN)
        ends = [float(getattr(trial.curves[watched.name][-1], axis)) for own in runs.values() for trial in own]
        horizontal = Scale(0.0, max(ends, default=1.0), left, left + _WIDTH)
        parts += _frame(horizontal, vertical, label)
        moments = [rung.at for rung in rungs if by == axis and rung.at < horizontal.high]
        parts += [f'<path class="rung" d="M{horizontal(at):.1f},{_TOP}v{_HEIGHT}"/>' for at in moments]
        for index, own in enumerate(runs.values()):
            parts += _curves(own, watched, axis, horizontal, vertical, index)
    for index, (method, own) in enumerate(runs.items()):
        parts += _legend(method, own, index, _TOP + _HEIGHT + 60 + _LINE * index)
    return "\n".join([*parts, "</svg>", ""])


def _range(trials: Sequence[Trial], watched: Watched) -> tuple[float, float]:
    """Return the lowest and the highest value to show."""
    finite = [
        (trial.method.plain, watched.sign * point.value)
        for trial in trials
        for point in trial.curves.get(watched.name, [])
        if math.isfinite(point.value)
    ]
    if not finite:
        return 0.0, 1.0
    values = [value for _, value in finite]
    best, worst = min(values), max([value for plain, value in finite if plain] or values)
    worst = min(max(values), worst + 0.25 * (worst - best))
    margin = 0.03 * (worst - best) or 0.03 * abs(best) or 1.0
    low, high = sorted((watched.sign * (best - margin), watched.sign * (worst + margin)))
    return low, high


def _frame(horizontal: Scale, vertical: Scale, label: str) -> list[str]:
    """Return the grid of a panel, with its numbers and the name of its axis."""
    left, right, bottom = horizontal.begin, horizontal.end, vertical.begin
    parts = [f'<path class="grid" d="M{left},{_TOP}V{bottom}H{right}"/>']
    for tick in vertical.ticks():
        y = vertical(tick)
        parts.append(f'<path class="grid" d="M{left},{y:.1f}H{right}"/>')
        parts.append(f'<text class="end" x="{left - 6}" y="{y + 4:.1f}">{tick:.4g}</text>')
    for tick in horizontal.ticks():
        parts.append(f'<text class="middle" x="{horizontal(tick):.1f}" y="{bottom + 18}">{tick:.6g}</text>')
    parts.append(f'<text class="middle" x="{(left + right) / 2}" y="{bottom + 36}">{label}</text>')
    return parts


def _curves(
    runs: Sequence[Trial], watched: Watched, axis: str, horizontal: Scale, vertical: Scale, index: int
) -> list[str]:
    """Return the curves of a method in a panel, and a cross where it was dropped."""
    color, dash = _look(index)

    def line(name: str, points: Sequence[tuple[float, float]], style: str) -> str:
        pixels = " ".join(f"{horizontal(x):.1f},{vertical(y):.1f}" for x, y in points)
        return f'<polyline class="{name}" stroke="{color}"{style} points="{pixels}"/>'

    curves = [trial.curves[watched.name] for trial in runs]
    parts = [f"<g><title>{xml_text(runs[0].method.name)}</title>"]
    if len(curves) > 1:
        own = [[(float(getattr(point, axis)), point.value) for point in thinned(curve)] for curve in curves]
        parts += [line("run", [each for each in points if not math.isnan(each[1])], "") for points in own]
    parts.append(line("median", _median(curves, watched, axis), dash))
    for drop in [trial.dropped for trial in runs[:1] if trial.dropped is not None]:
        x = horizontal(float(getattr(drop.point, axis)))
        y = vertical(number(drop.point.value, watched))
        parts.append(f'<path class="drop" stroke="{color}" d="M{x - 5:.1f},{y - 5:.1f}l10,10m0,-10l-10,10"/>')
    return [*parts, "</g>"]


def _median(curves: Sequence[Sequence[Point]], watched: Watched, axis: str) -> list[tuple[float, float]]:
    """Return the medians of curves after as many steps, as far as all of them have come."""
    places = sorted({point.steps for curve in curves for point in thinned(curve)})
    first, last = max(curve[0].steps for curve in curves), min(curve[-1].steps for curve in curves)
    points = []
    for at in thinned([place for place in places if first <= place <= last]):
        ends = [end for curve in curves if (end := value_at(curve, at, "steps")) is not None]
        x = median(float(getattr(end, axis)) for end in ends)
        points.append((x, median(number(end.value, watched) for end in ends)))
    return points


def _legend(method: Method, runs: Sequence[Trial], index: int, y: float) -> list[str]:
    """Return the line of a method in the legend."""
    color, dash = _look(index)
    drop = runs[0].dropped
    ended = "" if drop is None else f", dropped after {drop.point.steps:.0f} steps, {drop.point.seconds:.1f} s"
    return [
        f'<path class="median" stroke="{color}"{dash} d="M{_LEFT},{y - 4}h36"/>',
        f'<text x="{_LEFT + 46}" y="{y}">{xml_text(method.name + ended)}</text>',
    ]


def _look(index: int) -> tuple[str, str]:
    """Return a color, and an attribute for the dashes of a line."""
    dash = _DASHES[index // len(COLORS) % len(_DASHES)]
    return COLORS[index % len(COLORS)], f' stroke-dasharray="{dash}"' if dash else ""
