"""Arrays in the memory of a device, recognized by their attributes: no framework is imported here."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CudaArray",
    "CudaContext",
    "Flush",
    "Order",
    "Queue",
    "is_device_array",
    "is_gpu_array",
    "memory_order",
    "order_of",
]

Queue = Callable[[list[int], int], None]  # with the addresses of arrays, and the stream to queue on
Flush = Callable[[], None]  # makes a call that was put off, unless it has been made
# The axes of a dense array from the slowest to the fastest in memory; (0, 1, 2, ...) is C order.
Order = tuple[int, ...]


def is_gpu_array(array: Any) -> bool:
    """Return whether an array is a GpuArray, without importing pygpu."""
    return hasattr(type(array), "get_ipc_handle")


def is_device_array(array: Any) -> bool:
    """Return whether an array is one that a center on devices takes: a GpuArray or a `CudaArray`."""
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
    """The primary context of a device, which the frameworks of one process share.

    Attributes
    ----------
    ordinal : int
        Number of the device, as the driver counts.
    """

    ordinal: int

    @property
    def ptr(self) -> int:
        """The number that identifies a context."""
        return self.ordinal

    @property
    def kind(self) -> bytes:
        """As pygpu names it."""
        return b"cuda"


class _Flags(NamedTuple):
    c_contiguous: bool


_flags_of = functools.cache(_Flags)  # arrays are made for each synchronization, hundreds of them
_context_of = functools.cache(CudaContext)


class CudaArray(abc.ABC):
    """A framework's array, with the face of pygpu's GpuArray as far as synchronizing needs it.

    An adapter derives the array of its framework, and passes it from `Parameter.on_device`. ``numpy.asarray(array)``
    copies to the host, ``array[...] = values`` from the host or from another array of its class. Both come after the
    work that the framework has queued.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype or str
    ordinal : int
        Number of the device, as the driver counts.
    strides : tuple of int, optional
        Of the axes, in elements; those of C order by default.
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
        """Number of elements."""
        return math.prod(self.shape)

    @staticmethod
    @abc.abstractmethod
    def change(arrays: Sequence[Any], queue: Queue) -> None:
        """Let work be queued that changes arrays of this class, behind the framework's work on them and before what
        it does with them next.

        Parameters
        ----------
        arrays : sequence of CudaArray
            On one device; one at least.
        queue : callable
            ``queue(addresses, stream)`` queues the work, and is called once, before this returns. The addresses are
            those of the arrays' first elements. An exception of it is raised here.
        """

    @abc.abstractmethod
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        """Copy the values to the host."""

    @abc.abstractmethod
    def __setitem__(self, key: Any, values: Any) -> None:
        """Take values over, of the host or of another such array."""

    @abc.abstractmethod
    def __getitem__(self, key: Any) -> CudaArray:
        """Return some of the elements."""

    @abc.abstractmethod
    def reshape(self, shape: tuple[int, ...]) -> CudaArray:
        """Return the values in another shape."""

    @abc.abstractmethod
    def copy(self) -> CudaArray:
        """Return a copy on the device."""
