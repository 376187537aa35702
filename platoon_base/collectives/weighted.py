"""Weighted averages of values over all workers: one order of steps for every framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.collectives.flat import FlatBuffers
from platoon_base.dtypes import Array
from platoon_base.system.environment import deterministic_seed

MIN_WEIGHT = 1e-8  # The weight of a batch in which everything is masked.
_EXACT = deterministic_seed() is not None
_NEAR = {np.dtype(name): 8 * float(np.finfo(name).eps) for name in ("float32", "float64")}


class Header:
    """Travels with values: each rank's weight, how many ranks use each value, and other numbers."""

    def __init__(self, size: int, values: int = 0, others: int = 0, dtype: Any = np.float32) -> None:
        self.array = np.zeros(size + values + others, dtype)
        self.weights, self.used = self.array[:size], self.array[size : size + values]
        self.others = self.array[size + values :]


def sums_of(means: Array, size: int) -> Array:
    """Return the sums of which these are means over ``size`` workers; exactly, if they are integers."""
    sums = means * size
    if not size & (size - 1):  # Divisions by a power of two are exact.
        return sums
    whole = np.rint(sums)
    return np.where(abs(sums - whole) <= _NEAR[means.dtype] * whole, whole, sums)


def unit_of(weights: Any, before: float) -> float:
    """Return the unit of the next weights: the largest of these, or ``before`` if all are tiny."""
    # Values of this weight then need no scaling, and those of 16 bits do not overflow. Under
    # --deterministic it is a power of two, which makes the result independent of earlier steps.
    largest = float(max(weights))
    if _EXACT and largest > 0:
        largest = 2.0 ** (math.frexp(largest)[1] - 1)
    return largest if largest > 2 * MIN_WEIGHT else before


class WeightedAverage:
    """Base of the average ``sum_i w_i g_i / sum_i w_i``; derived classes store values and weights.

    Values times `factor` are combined with those of all workers, and their sum divided by
    ``divisor`` is multiplied by `rest`. The weights travel with the values; with compression
    they precede them, since residuals are of averages.
    """

    compresses = False
    divisor = 1  # Of combined values, and of `weights`.
    unit = 1.0  # Of the weights.
    factor: Any = 1.0
    idle = False  # Whether no worker has values, so that nothing is to be combined.
    _is_sum = False

    def exchange_header(self) -> None:
        """Combine the headers of all workers, before the values."""
        raise NotImplementedError

    def weights(self) -> Any:
        """Return the sum of the combined weights, divided by ``divisor``."""
        raise NotImplementedError

    def begin(self, weight: Any, is_sum: bool, has_values: bool) -> None:
        """Set the factor of this worker's values; ``weight`` is 0 if it has none."""
        self._is_sum, self.idle, divisor = is_sum, False, self.unit
        if self.compresses:
            self.exchange_header()
            # Nobody uses the result if no worker has values, and residuals would be lost.
            self.idle = not has_values and not float(self.weights())
            divisor = self.nonzero(self.weights()) * self.divisor
        self.factor = 0.0 if self.idle else 1.0 if is_sum else weight / divisor

    def rest(self) -> Any:
        """Return the factor of combined values."""
        if self.compresses:
            return 1.0
        return self.divisor if self._is_sum else self.unit / self.nonzero(self.weights())

    def nonzero(self, weights: Any) -> Any:
        """Return the weights as a divisor: 1 for 0, since then all values are 0."""
        return weights or 1.0


class HostAverage(WeightedAverage):
    """Averages arrays of the host; ``all_reduce(array, op, dest)`` is that of a worker."""

    def __init__(self, all_reduce: Callable[..., Any], rank: int, size: int, compresses: bool) -> None:
        self._all_reduce, self._rank, self.divisor, self.compresses = all_reduce, rank, size, compresses
        self._buffers = FlatBuffers(compress=compresses)
        self._mine = self._all = Header(size)

    def __call__(
        self,
        ins: Sequence[Array],
        outs: Sequence[Array],
        weight: float,
        mine: Header,
        everyones: Header,
        *,
        is_sum: bool = False,
        names: Sequence[Any] = (),
    ) -> None:
        """Write averages to ``outs``, C-contiguous and possibly ``ins``; also sum the headers.

        With weight 0 the values do not count, whatever they are. Residuals are stored by ``names``.
        """
        self._mine, self._all = mine, everyones
        mine.weights[self._rank] = weight
        self.begin(weight, is_sum, weight > 0)
        ins = _scaled(ins, outs, self.factor if weight else 0.0)
        used = everyones.used
        # The result of a value that no worker uses is dropped, and residuals with it.
        here = [i for i, array in enumerate(ins) if array.size and not (self.compresses and len(used) and not used[i])]
        pairs = [ins[i] for i in here], [outs[i] for i in here]
        if not self.compresses:
            self._buffers.combine(self._all_reduce, "mean", [*pairs[0], mine.array], [*pairs[1], everyones.array])
            everyones.array[:] = sums_of(everyones.array, self.divisor)
            _scaled(outs, outs, self.rest())
            self.unit = unit_of(everyones.weights, self.unit)
        elif not self.idle:
            self._buffers.combine(self._all_reduce, "sum", *pairs, [(names or range(len(ins)))[i] for i in here])

    def exchange_header(self) -> None:
        self._all_reduce(self._mine.array, "mean", self._all.array)
        self._all.array[:] = sums_of(self._all.array, self.divisor)

    def weights(self) -> float:
        return math.fsum(self._all.weights.tolist()) / self.divisor


def _scaled(ins: Sequence[Array], outs: Sequence[Array], factor: float) -> Sequence[Array]:
    """Return ``ins`` times a factor, in ``outs``; ``ins`` itself if the factor is 1."""
    if factor == 1:
        return ins
    for array, out in zip(ins, outs):
        # An infinite factor would turn zeros into NaN, and NaN times 0 is one.
        number = array.dtype.type(min(factor, float(np.finfo(array.dtype).max)))
        if factor:
            np.multiply(array, number, out=out)
        else:
            out[...] = 0
    return outs
