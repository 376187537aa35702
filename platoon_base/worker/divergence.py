"""Warnings about divergence, long before a NaN: rising losses, growing parameters, too much
momentum.
"""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.rules.center import settings_of
from platoon_base.rules.outer import waits

log = logging.getLogger(__name__)

_PARAMETERS = 4  # The largest parameters are sampled.
_ELEMENTS = 32  # Elements per sampled parameter.
# Growth is measured over this many synchronizations; the first rounds are not judged.
_PATIENCE = 20
_IN_A_ROW = 8
_TIMES_AS_LARGE = 30.0
# Root mean square; smaller parameters may grow by any factor, since they may start from zero.
_LARGE = 10.0
_ROUNDS = 10  # Rounds per comparison.
_TIMES_THE_BEST = 2.0
_EPOCHS = 3
# Measured on Fashion-MNIST: 0.7 to 4.8 where outer momentum helps, 1.8 to 6.7 where it harms.
_TIMES_AS_FAR = 5.0


class DivergenceWatch:
    """Samples parameters at each synchronization; warns once of growth, and once of momentum.

    *Growth*: with ``r_t`` the root mean square of the sample after synchronization ``t``, the
    training may diverge if, eight times in a row, ``r_t > max(30 max(r_0, ..., r_(t - 20)), 10)``.
    Divergence grows exponentially; steady learning grows as ``t``, and a linear warm-up as ``t **
    2``.

    *Momentum*, with rules that wait: while a worker's progress is the same in each round, the
    center moves ``outer_lr / (1 - mu)`` times as far as the worker. Later only the common part of
    the progress adds up. If the center then still moves five times as far in ten rounds, its
    momentum is too large.

    ``every_s`` > 0 is for arrays on devices: seconds between samples. Each is judged at the next
    one, so that no call waits for the device.
    """

    def __init__(self, rank: int, every_s: float = 0.0) -> None:
        self._rank = rank
        self._every_s = every_s
        self._next_poll_at = -math.inf
        self._places: list[tuple[int, slice]] = []
        self._taken: list[Any] = []  # The sample on a device that is not judged yet.
        self._before = self._after = np.empty(0)
        self._sizes: collections.deque[float] = collections.deque()
        self._largest = 0.0
        self._in_a_row = 0
        self._own = self._steps = 0.0
        self._rounds = 0
        self._grew = self._carried = False

    def before_sync(self, arrays: Sequence[Any], rule: Any) -> None:
        """Record the values after training; on devices warn if earlier ones indicate divergence."""
        if not self._carried and waits(rule):
            self._before = self._sample(arrays)
        if self._every_s and not self._grew and self._is_time():
            taken, self._taken = self._taken, [part.copy() for part in self._parts(arrays)]
            if taken:
                self._compare_sizes(_root_mean_square(np.concatenate(taken, dtype=np.float64)), rule)

    def after_sync(self, arrays: Sequence[Any], rule: Any) -> None:
        """Record the values after the synchronization; warn if they indicate divergence."""
        rounds = not self._carried and waits(rule)
        if self._every_s or (not rounds and self._grew):
            return
        began, self._after = self._after, self._sample(arrays)
        if rounds and began.size:
            self._compare_steps(began, rule)
        if not self._grew:
            self._compare_sizes(_root_mean_square(self._after), rule)

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now < self._next_poll_at:
            return False
        self._next_poll_at = now + self._every_s
        return True

    def _compare_sizes(self, size: float, rule: Any) -> None:
        self._sizes.append(size)
        if len(self._sizes) <= _PATIENCE:
            return
        self._largest = max(self._largest, self._sizes.popleft())
        # The center reports NaN; the comparison is false then.
        if not size > max(_TIMES_AS_LARGE * self._largest, _LARGE):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row == _IN_A_ROW:
            self._grew = True
            log.warning(
                "rank %d: the parameters are more than %d times as large as %d synchronizations "
                "ago, so this training may diverge. With %s, lower gain, outer_lr or momentum, "
                "synchronize less often, or lower the learning rate; EASGD() and LocalSGD() have "
                "no momentum",
                self._rank,
                _TIMES_AS_LARGE,
                _PATIENCE,
                _name(rule),
            )

    def _compare_steps(self, began: Array, rule: Any) -> None:
        self._rounds += 1
        if self._rounds <= _PATIENCE:
            return
        self._own += _distance(self._before, began)
        self._steps += _distance(self._after, began)
        if self._rounds % _ROUNDS:
            return
        own, steps, self._own, self._steps = self._own, self._steps, 0.0, 0.0
        if steps > _TIMES_AS_FAR * own > 0:
            self._carried = True
            log.warning(
                "rank %d: in the last %d rounds of %s the center moved %.1f times as far as this "
                "worker, because of its momentum. If the loss does not fall, lower momentum or "
                "outer_lr, or synchronize less often",
                self._rank,
                _ROUNDS,
                _name(rule),
                steps / own,
            )

    def _sample(self, arrays: Sequence[Any]) -> Array:
        return np.concatenate(self._parts(arrays), dtype=np.float64)

    def _parts(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the sampled elements of each sampled parameter, on its device."""
        if not self._places:
            largest = sorted((i for i in range(len(arrays)) if arrays[i].size), key=lambda i: -arrays[i].size)
            self._places = [(i, _spread(arrays[i].size)) for i in largest[:_PARAMETERS]]
        return [arrays[i].reshape((-1,))[every] for i, every in self._places]


class LossWatch:
    """Checks the training loss of each epoch; warns once if it has risen and stays high.

    The training may diverge if, three epochs in a row, ``l_e > 2 min(l_0, ..., l_(e - 1)) > 0``. A
    loss that has been negative is not judged.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._best = math.inf
        self._in_a_row = 0
        self._warned = False

    def epoch_ends(self, loss: float, rule: Any, tells: bool = True) -> bool:
        """Record the loss of an epoch and return whether it is high; with ``tells`` warn."""
        high = loss > _TIMES_THE_BEST * self._best > 0
        self._in_a_row = self._in_a_row + 1 if high else 0
        self._best = min(self._best, loss)
        if self._in_a_row == _EPOCHS and not self._warned and tells:
            self._warned = True
            log.warning(
                "rank %d: the training loss is %.4g, and has been more than twice its best "
                "value, %.4g, for %d epochs: this training may diverge. With %s, lower gain, "
                "outer_lr or momentum, synchronize more often, or lower the learning rate; "
                "EASGD() and LocalSGD() have no momentum",
                self._rank,
                loss,
                self._best,
                _EPOCHS,
                _name(rule),
            )
        return high


def _name(rule: Any) -> str:
    return settings_of(rule) or type(rule).__name__


def _spread(size: int) -> slice:
    """Choose elements by an odd stride: it covers all columns of a matrix with a width of 2^n."""
    stride = size // _ELEMENTS
    return slice(0, None, stride | 1) if stride else slice(None)


def _root_mean_square(a: Array) -> float:
    return math.sqrt(a.dot(a) / a.size)


def _distance(a: Array, b: Array) -> float:
    d = a - b
    return math.sqrt(d.dot(d))
