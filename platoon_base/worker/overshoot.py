"""A warning about parameters that move farther and farther: momentum at the center, or the learning rate, is too large.

A NaN ends a training soon after; before that, nobody may look at the losses.
"""

from __future__ import annotations

import collections
import logging
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Overshoot"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_HISTORY = 100  # synchronizations
_FIRST_LOOK = 10
_TOO_FAR = 30.0
_IN_A_ROW = 5
_PARAMETERS = 8  # the largest ones, of each of which some elements are looked at
_SAMPLE = 64


class Overshoot:
    """Compares how far a sample of the parameters moves with how far training has moved it so far.

    Both training since the latest synchronization and a synchronization itself count: a center that runs away takes
    the workers along, whose gradients then grow.

    Parameters
    ----------
    rank : int
        For the message.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._trained: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._before = self._after = np.empty(0)
        self._strikes = 0

    def before_sync(self, arrays: Sequence[Any]) -> None:
        """Take note of the values that training has led to."""
        self._before = _sample(arrays)

    def after_sync(self, arrays: Sequence[Any], rule: object) -> None:
        """Take note of the values that the synchronization has led to; warn once if both lead away."""
        if self._strikes >= _IN_A_ROW:
            return
        trained = _distance(self._before, self._after) if self._after.size else 0.0
        self._after = _sample(arrays)
        moved = max(trained, _distance(self._after, self._before))
        if len(self._trained) >= _FIRST_LOOK and moved > _TOO_FAR * statistics.median(self._trained):
            self._strikes += 1
        else:
            self._strikes = 0
        if trained > 0:
            self._trained.append(trained)
        if self._strikes == _IN_A_ROW:
            log.warning(
                "rank %d: the parameters moved more than %d times as far as before in each of the last %d periods, so "
                "this training may diverge. With %r, lower gain, outer_lr or momentum, synchronize less often, or lower"
                " the learning rate; EASGD() and LocalSGD() have no momentum",
                self._rank,
                _TOO_FAR,
                _IN_A_ROW,
                rule,
            )


def _sample(arrays: Sequence[Any]) -> Array:
    largest = sorted(arrays, key=lambda array: -array.size)[:_PARAMETERS]  # stable: the same ones each time
    flat = (np.asarray(array).reshape(-1) for array in largest)
    return np.concatenate([values[:: max(1, values.size // _SAMPLE)][:_SAMPLE].astype("float64") for values in flat])


def _distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b))
