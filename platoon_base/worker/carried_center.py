"""A warning about outer steps that are too large: the center moves much farther than the workers do."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["CarriedCenter"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_SAMPLE = 4096  # elements that are looked at
_ROUNDS = 10  # rounds whose lengths are averaged
_PATIENCE = 20  # rounds at the begin, in which all workers go the same way, mean nothing
_FACTOR = 5.0  # measured on Fashion-MNIST: 0.7 to 4.8 where outer momentum pays, 1.8 to 6.7 where it does harm


class CarriedCenter:
    """Compares the outer steps with this worker's own progress, on a sample of the parameters; warns once.

    Steady progress moves the center by ``outer_lr / (1 - mu)`` times as much a round, and at the begin that is right.
    Later the workers' progress differs from round to round, and its common part alone adds up in the momentum. A center
    that goes five times as far as a worker by then is carried by its momentum. Not all that do harm go so far.

    Parameters
    ----------
    rule : str
        For the message.
    rank : int
        For the message.
    """

    def __init__(self, rule: str, rank: int) -> None:
        self._rule, self._rank = rule, rank
        self._start: Array | None = None
        self._own: collections.deque[float] = collections.deque(maxlen=_ROUNDS)
        self._steps: collections.deque[float] = collections.deque(maxlen=_ROUNDS)
        self._rounds = 0
        self._told = False

    def before_round(self, arrays: Sequence[Any]) -> Array:
        """Return a sample of the values that this worker brings into a round, for `after_round`."""
        return np.empty(0) if self._told else _sample(arrays)

    def after_round(self, brought: Array, arrays: Sequence[Any]) -> None:
        """Compare them with the values that it takes out of the round, and with those of the round before."""
        if self._told:
            return
        start, self._start = self._start, _sample(arrays)
        if start is None:
            return
        self._rounds += 1
        self._own.append(float(np.linalg.norm(brought - start)))
        self._steps.append(float(np.linalg.norm(self._start - start)))
        own, steps = sum(self._own), sum(self._steps)
        if self._rounds > _PATIENCE and steps > _FACTOR * own > 0:
            self._told = True
            log.warning(
                "rank %d: in the last %d rounds of %s the common center went %.1f times as far as this worker, carried "
                "by its momentum. If the loss does not fall, lower momentum or outer_lr, or synchronize less often",
                self._rank,
                _ROUNDS,
                self._rule,
                steps / own,
            )


def _sample(arrays: Sequence[Any]) -> Array:
    stride = max(1, sum(array.size for array in arrays) // _SAMPLE)
    return np.concatenate([np.asarray(array).reshape(-1)[::stride].astype(np.float64) for array in arrays])
