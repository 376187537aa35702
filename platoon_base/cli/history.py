"""The history of values over a job, in bounded memory, its picture, and guesses from their names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

__all__ = ["BLOCKS", "Course", "Track", "direction", "higher_is_better", "is_loss", "is_validation", "sparkline"]

_HIGHER = re.compile(r"acc|auc|precision|recall|f1|score|bleu|r2|psnr", re.IGNORECASE)
_VALIDATION = {"val", "valid", "validation", "validate", "test", "testing", "dev", "eval", "evaluation", "heldout"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # so valLoss is two
_LOSS = re.compile(r"loss|cost|error|nll|perplexity|mse|mae", re.IGNORECASE)


def is_validation(name: str) -> bool:
    """Return whether a value seems to be measured on data that is not trained on."""
    return any(word.lower() in _VALIDATION for word in _WORD.findall(name))


def is_loss(name: str) -> bool:
    """Return whether a value seems to be a loss or an error, so that lower is better."""
    return bool(_LOSS.search(name))


def higher_is_better(name: str) -> bool:
    """Return whether a value seems to be an accuracy or a score; an unknown name counts as a loss."""
    return bool(_HIGHER.search(name)) and not is_loss(name)


def direction(name: str) -> int:
    """Return 1 if higher is better, -1 if lower is, and 0 if the name does not say."""
    return -1 if is_loss(name) else 1 if higher_is_better(name) else 0


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
