"""Parts of the pictures that this package draws as SVG: scales, round numbers on axes, thinned curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

__all__ = ["COLORS", "Scale", "thinned"]

COLORS = ("#3b7dd8", "#e07b00", "#2e9e5b", "#d0408f", "#8a63d2", "#b08900", "#1d9aa8", "#c9504a", "#7a8794")
_MOST_POINTS = 300  # of a curve
_T = TypeVar("_T")


class Scale(NamedTuple):
    """The values along one side of a panel, and the pixels to which they belong."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Return about five round numbers within the scale."""
        raw = ((self.high - self.low) or 1.0) / 5
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first = math.ceil(self.low / step)
        return [step * each for each in range(first, first + 12) if step * each <= self.high]


def thinned(items: Sequence[_T], most: int = _MOST_POINTS) -> Sequence[_T]:
    """Return at most ``most`` of the items, evenly spread, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[each * (len(items) - 1) // (most - 1)] for each in range(most)]
