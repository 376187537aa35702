"""The loops of rounds on the memory of one stripe: by the C extension where it can, by NumPy otherwise.

Both forms give the same bits, and both leave out what would not be finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_kernels import BLOCK, find_fused
from platoon_base.rules.outer import OuterRule

__all__ = ["RoundKernels", "blocks"]

Array = np.ndarray[Any, Any]


def blocks(size: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` elements that cover ``size`` elements."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


class RoundKernels:
    """The loops on one piece of a stripe.

    Parameters
    ----------
    center, total : ndarray, shape (n,), of the same float dtype
    states : tuple of ndarray
        The rule's states beside the center, like it.
    """

    def __init__(self, center: Array, total: Array, states: tuple[Array, ...]) -> None:
        self._center, self._total, self._states = center, total, states
        self._arrays = [total, center, *states]
        self._aligned = all(array.flags.carray for array in self._arrays)
        self._starts = [array.ctypes.data for array in self._arrays]
        self._row = np.zeros(len(self._arrays) + 2, np.int64)
        self._address = self._row.ctypes.data

    def contribute(self, x: Array) -> int | None:
        """Add ``x - c`` to the total; returns the first element left out."""
        fused = find_fused("contribute", self._center.dtype) if self._aligned and x.flags.carray else None
        if fused is not None:
            self._row[:4] = x.__array_interface__["data"][0], self._starts[1], self._starts[0], x.size
            refused = fused(self._address, 1)
            return None if refused is None else refused[1]
        first = None
        with np.errstate(all="ignore"):
            for block in blocks(x.size):
                t = self._total[block]
                value = t + (x[block] - self._center[block])
                finite = np.isfinite(value)
                np.copyto(t, value, where=finite)
                if first is None and not finite.all():
                    first = block.start + int(np.argmin(finite))
        return first

    def step(self, rule: OuterRule, block: slice, count: int, part: float) -> int | None:
        """Make the outer step on a block, and clear its totals; returns the first element that stays as it was."""
        kernel = getattr(rule, "step_kernel", None) if self._aligned else None
        fused = None if kernel is None else find_fused(kernel, self._center.dtype)
        if fused is not None:
            offset = block.start * self._center.itemsize
            self._row[: len(self._starts)] = [start + offset for start in self._starts]
            self._row[len(self._starts)] = block.stop - block.start
            refused = fused(self._address, 1, count, *rule.step_args(part))
            return None if refused is None else block.start + refused[1]
        with np.errstate(all="ignore"):
            return self._step_numpy(rule, block, count, part)

    def _step_numpy(self, rule: OuterRule, block: slice, count: int, part: float) -> int | None:
        total, *arrays = (array[block] for array in self._arrays)
        c, *states = [array.copy() for array in arrays]
        rule.step(total / total.dtype.type(count), c, tuple(states), part)
        finite = _all_finite([c, *states])
        total[...] = 0  # first: a step that a death interrupts is lost for some elements, and none is made twice
        for array, copy in zip(reversed(arrays), reversed([c, *states])):
            np.copyto(array, copy, where=finite)
        return None if finite.all() else block.start + int(np.argmin(finite))


def _all_finite(arrays: Sequence[Array]) -> Array:
    finite: Array = np.isfinite(arrays[0])
    for array in arrays[1:]:
        finite &= np.isfinite(array)
    return finite
