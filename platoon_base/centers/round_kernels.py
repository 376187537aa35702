"""Loops of rounds on the memory of one stripe, by the C extension or by NumPy.

Both give the same bits, and leave out elements that would not be finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_kernels import BLOCK, find_fused
from platoon_base.layout import ALIGNMENT, Layout
from platoon_base.rules.outer import OuterRule, step_form_of

__all__ = ["RoundKernels", "blocks", "undo_bytes"]

Array = np.ndarray[Any, Any]


def blocks(size: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` elements that cover ``size`` elements."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def undo_bytes(layout: Layout, states: int) -> int:
    """Return the size of a saved block: its totals, its center, and the rule's states."""
    largest = max(min(spec.size, BLOCK) * np.dtype(spec.dtype).itemsize for spec in layout.specs)
    return (2 + states) * -(-largest // ALIGNMENT) * ALIGNMENT


class RoundKernels:
    """Loops on one piece of a stripe; ``undo`` is the memory for a saved block."""

    def __init__(self, center: Array, totals: tuple[Array, Array], states: tuple[Array, ...], undo: Array) -> None:
        self._center, self._totals = center, totals
        # Arrays that a step changes.
        self._changing = [[total, center, *states] for total in totals]
        width = min(center.size, BLOCK)
        size = (2 + len(states)) * width
        self._undo = undo[: size * center.itemsize].view(center.dtype).reshape(2 + len(states), width)
        self._aligned = all(array.flags.carray for arrays in self._changing for array in arrays)
        self._starts = [[array.ctypes.data for array in arrays] for arrays in self._changing]
        self._row = np.zeros(5 + len(states), np.int64)
        self._address = self._row.ctypes.data

    def contribute(self, x: Array, used: int) -> int | None:
        """Write totals in use plus ``x - c`` to the others; return the first element refused."""
        total, sums = self._totals[used], self._totals[1 - used]
        fused = find_fused("contribute", self._center.dtype) if self._aligned and x.flags.carray else None
        if fused is not None:
            addresses = self._starts[used][1], self._starts[used][0], self._starts[1 - used][0]
            self._row[:5] = x.__array_interface__["data"][0], *addresses, x.size
            refused = fused(self._address, 1)
            return None if refused is None else refused[1]
        first = None
        with np.errstate(all="ignore"):
            for block in blocks(x.size):
                value = total[block] + (x[block] - self._center[block])
                finite = np.isfinite(value)
                sums[block] = np.where(finite, value, total[block])
                if first is None and not finite.all():
                    first = block.start + int(np.argmin(finite))
        return first

    def copy(self, block: slice, used: int) -> None:
        """Save a block before a step."""
        for copy, array in zip(self._undo, self._changing[used]):
            np.copyto(copy[: block.stop - block.start], array[block])

    def put_back(self, block: slice, used: int) -> None:
        """Undo a step on a block, which may be half done."""
        for copy, array in zip(self._undo, self._changing[used]):
            np.copyto(array[block], copy[: block.stop - block.start])

    def step(self, rule: OuterRule, block: slice, used: int, count: int, part: float) -> int | None:
        """Make the outer step on a block and clear its totals; return the first element refused."""
        form = step_form_of(rule) if self._aligned else None
        fused = None if form is None else find_fused(form.name, self._center.dtype)
        if fused is not None:
            starts, offset = self._starts[used], block.start * self._center.itemsize
            self._row[: len(starts)] = [start + offset for start in starts]
            self._row[len(starts)] = block.stop - block.start
            refused = fused(self._address, 1, count, *rule.step_args(part))
            return None if refused is None else block.start + refused[1]
        with np.errstate(all="ignore"):
            return self._step_numpy(rule, block, self._changing[used], count, part)

    @staticmethod
    def _step_numpy(rule: OuterRule, block: slice, changing: Sequence[Array], count: int, part: float) -> int | None:
        total, *arrays = (array[block] for array in changing)
        c, *states = [array.copy() for array in arrays]
        rule.step(total / total.dtype.type(count), c, tuple(states), part)
        finite = _all_finite([c, *states])
        total[...] = 0
        for array, copy in zip(arrays, [c, *states]):
            np.copyto(array, copy, where=finite)
        return None if finite.all() else block.start + int(np.argmin(finite))


def _all_finite(arrays: Sequence[Array]) -> Array:
    finite: Array = np.isfinite(arrays[0])
    for array in arrays[1:]:
        finite &= np.isfinite(array)
    return finite
