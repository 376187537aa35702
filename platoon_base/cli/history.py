"""The history of values over a job, in bounded memory, and its picture in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from platoon_base.cli.value_names import direction

__all__ = ["BLOCKS", "Course", "Track", "sparkline"]

BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.,-+=*#"
_KEPT = 64


class Course:
    """The values of one quantity, at most 64 at equal distances; neighbours are averaged."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._each, self._sum, self._count = 1, 0.0, 0

    def add(self, value: float) -> None:
        # NaN and infinities are skipped.
        if not math.isfinite(value):
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._each:
            return
        self.values.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.values) >= _KEPT:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2])]
            self._each *= 2


class Track:
    """The history of a reported number, and its best value."""

    def __init__(self, name: str) -> None:
        self.course = Course()
        self.best, self.best_epoch = math.nan, 0  # NaN: no direction is known; 0: no epoch is known
        self._direction = direction(name)
        self._latest: tuple[float, int] | None = None

    def take(self, value: float, epoch: int) -> None:
        """Add a value, unless it repeats the latest one."""
        if (value, epoch) == self._latest:
            return
        self._latest = value, epoch
        self.course.add(value)
        better = math.isnan(self.best) or self._direction * (value - self.best) > 0
        if self._direction and math.isfinite(value) and better:
            self.best, self.best_epoch = value, epoch


def sparkline(values: Sequence[float], width: int, low: float | None = None, plain: bool = False) -> str:
    """Draw finite values as bars; ``low`` is the value of the lowest bar, by default the least."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]
    least, most = min(values) if low is None else low, max(values)
    bars = _ASCII if plain else BLOCKS
    scale = (len(bars) - 1) / (most - least) if most > least else 0.0
    # The position is not finite if values are too large or too close.
    return "".join([bars[int(at + 0.5)] if 0 <= (at := (each - least) * scale) <= 7 else bars[0] for each in values])
