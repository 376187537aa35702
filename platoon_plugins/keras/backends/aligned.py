"""Aligned arrays that a back end uses without a copy; they are reused once released."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.dtypes import Array

# The alignment of TensorFlow's allocator, which copies memory with another alignment.
ALIGNMENT_BYTES = 64


class AlignedArrays:
    """A pool of arrays on 64-byte boundaries; an array is free when nothing else refers to it."""

    # New memory would take longer than a copy into reused memory.

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], list[Array]] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return a C-contiguous array with arbitrary content."""
        kept = self._arrays.setdefault((tuple(shape), np.dtype(dtype)), [])
        found = next((i for i in range(len(kept)) if _references(kept, i) <= _FREE), None)
        if found is None:
            found = len(kept)
            kept.append(_new(shape, np.dtype(dtype)))
        return kept[found]


def _new(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory: Array = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


def _references(kept: list[Array], i: int) -> int:
    """Return the number of references to an array and to its base, which its views refer to."""
    return sys.getrefcount(kept[i]) + sys.getrefcount(kept[i].base)


# The number of references if only the list refers to the array.
_FREE = _references([_new((1,), np.dtype(np.float32))], 0)


def writable(view: Array) -> Array:
    """Return a writable array on the memory of a read-only view."""
    # Call it only if no other code uses the value: back ends assume that it does not change.
    array: Array = np.asarray(_Writable(view))
    return array


class _Writable:
    def __init__(self, view: Array) -> None:
        self._view = view  # Keeps the memory alive.
        interface = view.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
