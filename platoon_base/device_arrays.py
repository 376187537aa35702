"""Arrays in the memory of a device, recognized by attributes; no framework is imported here."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# Called with the addresses of arrays and the stream.
Queue = Callable[[list[int], int], None]
# Makes a postponed call, unless it was made already.
Flush = Callable[[], None]
# The axes of a dense array from the slowest to the fastest in memory; (0, 1, 2, ...) is C order.
Order = tuple[int, ...]


def is_gpu_array(array: Any) -> bool:
    """Return whether an array is a GpuArray, without importing pygpu."""
    return hasattr(type(array), "get_ipc_handle")


def is_device_array(array: Any) -> bool:
    """Return whether a center on devices accepts an array: a GpuArray or a `CudaArray`."""
    return isinstance(array, CudaArray) or is_gpu_array(array)


def memory_order(array: Any) -> Order | None:
    """Return the order of a device array in memory; None if it has gaps."""
    if isinstance(array, CudaArray):
        return array.order
    return tuple(range(len(array.shape))) if array.flags.c_contiguous else None


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return the order of an array whose strides count elements; None if elements overlap or have gaps."""
    if 0 in shape:
        return tuple(range(len(shape)))
    axes = sorted((axis for axis, n in enumerate(shape) if n != 1), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(axes):
        if strides[axis] != expected:
            return None
        expected *= shape[axis]
    return (*axes, *(axis for axis, n in enumerate(shape) if n == 1))


class CudaContext(NamedTuple):
    """The primary context of a device, which the frameworks of one process share."""

    ordinal: int

    @property
    def ptr(self) -> int:
        return self.ordinal

    @property
    def kind(self) -> bytes:
        return b"cuda"


class _Flags(NamedTuple):
    c_contiguous: bool


# Cached, as each synchronization makes hundreds of arrays.
_flags_of = functools.cache(_Flags)
_context_of = functools.cache(CudaContext)


class CudaArray(abc.ABC):
    """A framework's array with the interface of pygpu's GpuArray, for `Parameter.on_device`.

    Both ``numpy.asarray(array)`` and ``array[...] = values`` are ordered after the framework's
    queued work. Strides count elements; None stands for C order.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, ordinal: int, strides: Sequence[int] | None = None) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.context = _context_of(ordinal)
        in_c_order = tuple(range(len(shape)))
        self.order = in_c_order if strides is None else order_of(shape, strides)
        self.flags = _flags_of(self.order == in_c_order)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @staticmethod
    @abc.abstractmethod
    def change(arrays: Sequence[Any], queue: Queue) -> None:
        """Call ``queue(addresses, stream)`` once, in order with the framework's queued work."""

    @classmethod
    def read(cls, arrays: Sequence[Any], queue: Queue) -> None:
        """Call ``queue(addresses, stream)`` once for work that only reads, after the framework's queued work."""
        cls.change(arrays, queue)

    @abc.abstractmethod
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        """Copy the values to the host."""

    @abc.abstractmethod
    def __setitem__(self, key: Any, values: Any) -> None:
        """Assign values of the host or of another such array."""

    @abc.abstractmethod
    def __getitem__(self, key: Any) -> CudaArray:
        """Return some of the elements."""

    @abc.abstractmethod
    def reshape(self, shape: tuple[int, ...]) -> CudaArray:
        """Return the values in another shape."""

    @abc.abstractmethod
    def copy(self) -> CudaArray:
        """Return a copy on the device."""
