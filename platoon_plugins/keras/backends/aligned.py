"""Arrays that a back end takes over without a copy, and that are used again once it has let go of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["AlignedArrays", "writable"]

Array = np.ndarray[Any, Any]

ALIGNMENT_BYTES = 64  # as TensorFlow's allocator has it: other memory is copied


class AlignedArrays:
    """A pool of arrays on 64-byte boundaries: fresh memory of large arrays costs more than a copy into old memory.

    An array is free when nobody else refers to it: neither Python nor a tensor that shares its memory.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], list[Array]] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return a C-contiguous array with any content.

        Parameters
        ----------
        shape : sequence of int
        dtype : dtype
        """
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
    """Count the references to an array and to the memory that it is a view of, as views of it have."""
    return sys.getrefcount(kept[i]) + sys.getrefcount(kept[i].base)


# What this Python counts where there are none but the list's.
_FREE = _references([_new((1,), np.dtype(np.float32))], 0)


def writable(view: Array) -> Array:
    """Return an array on the memory of a view that is read-only; it keeps that memory as the view does.

    Call it only where nobody else has seen the value: back ends take it that their values do not change.
    """
    array: Array = np.asarray(_Writable(view))
    return array


class _Writable:
    def __init__(self, view: Array) -> None:
        self._view = view  # it lives as long as an array is made of this
        interface = view.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
