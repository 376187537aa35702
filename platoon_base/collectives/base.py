"""The protocol of all collective back ends, and their common checks of arguments."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import ConfigurationError
from platoon_base.layout import require_plain

OPS = ("sum", "prod", "max", "min", "mean")

# The original Platoon and pygpu use these names.
_OTHER_NAMES = {
    "+": "sum", "add": "sum", "*": "prod", "product": "prod", "mul": "prod", "maximum": "max", "minimum": "min",
    "average": "mean", "avg": "mean",
}  # fmt: skip
_EMPTY = np.zeros(0, np.uint8)  # The array of a barrier.
_KNOWN_DTYPES = frozenset(np.dtype(name) for name in COLLECTIVE)


class Collective:
    """A process group: ranks that combine arrays. Back ends implement `call`.

    Every rank makes the same calls in the same order, with arrays of the same shape and dtype. A
    call ends within seconds if a rank that it needs has left or died, otherwise after
    ``timeout_s``, which may be infinity. ``rank`` is this worker's index in the group. The back end
    decides the kind of array: ndarrays on the host, GpuArrays on devices. Nothing is cast.
    """

    rank: int
    size: int

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        """Make the call of this kind; ``out`` is ``array`` for a broadcast."""
        raise NotImplementedError

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        out: Any = None,
        *,
        timeout_s: float,
        feedback: ErrorFeedback | None = None,
    ) -> Any:
        """Combine the arrays of all ranks element by element; all ranks get the same bits.

        Integers wrap around; their mean is rounded toward zero. ``out`` may be ``array``. A device
        may still be computing the returned array; work that is queued later can use it. With
        ``feedback``, a sum or a mean of floats may be compressed between hosts.

        Raises `WorkerLostError` if a rank left or died, `CollectiveTimeoutError` if a rank did not
        make the call in time, and `ConfigurationError` for invalid arguments.
        """
        return self.call("all_reduce", array, op, 0, out, timeout_s, feedback)

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float) -> Any:
        """Copy rank ``root``'s array into the others; all ranks must pass a writable array."""
        return self.call("broadcast", array, "sum", root, array, timeout_s)

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float) -> Any:
        """Stack the arrays of all ranks: ``shape`` becomes ``(size, *shape)``, in the order of the ranks."""
        return self.call("all_gather", array, "sum", 0, out, timeout_s)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        """Combine as `all_reduce` does; return this rank's part: ``(size, *shape)`` becomes ``shape``."""
        return self.call("reduce_scatter", array, op, 0, out, timeout_s)

    def barrier(self, *, timeout_s: float) -> None:
        self.call("barrier", _EMPTY, "sum", 0, _EMPTY, timeout_s)

    def close(self) -> None:
        """Release memory and connections without waiting for others; may be called again."""


def result_shape(kind: str, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the shape of the result of a call on an array of this shape, by ``size`` ranks."""
    if kind == "all_gather":
        return (size, *shape)
    if kind != "reduce_scatter":
        return shape
    if shape[:1] != (size,):
        raise ConfigurationError(f"got shape {tuple(shape)}: the first axis must be the number of ranks, {size}")
    return shape[1:]


def canonical_op(op: str) -> str:
    """Return the member of `OPS` for a name such as ``"+"`` or ``"maximum"``."""
    name = _OTHER_NAMES.get(op, op) if isinstance(op, str) else ""
    if name not in OPS:
        raise ConfigurationError(f"got op={op!r}: it must be one of {', '.join((*OPS, *_OTHER_NAMES))}")
    return name


def canonical_root(root: Any, size: int) -> int:
    try:
        index = operator.index(root)
    except TypeError:
        index = -1
    if not 0 <= index < size:
        raise ConfigurationError(f"got root={root!r}: it must be a rank of this group, an integer of 0 .. {size - 1}")
    return index


def require_timeout(timeout_s: Any) -> None:
    """Raise `ConfigurationError` unless ``timeout_s`` is a number of seconds, or infinity."""
    # A deadline of NaN would never pass.
    if isinstance(timeout_s, (float, int, numbers.Real)):
        try:
            if float(timeout_s) >= 0:
                return
        except OverflowError:
            pass
    raise ConfigurationError(f"got timeout_s={timeout_s!r}: it must be a number of seconds, 0 or more, or {math.inf}")


def require_dtype(array: Any) -> None:
    """Raise `ConfigurationError` unless all back ends support the array's dtype."""
    if isinstance(array, np.generic) or not (hasattr(array, "dtype") and hasattr(array, "shape")):
        raise ConfigurationError(f"got {type(array).__name__}: collectives take arrays; use numpy.asarray(...)")
    require_plain(array, "an array")
    if array.dtype not in _KNOWN_DTYPES:
        raise ConfigurationError(
            f"got an array of dtype {array.dtype}: collectives take {', '.join(COLLECTIVE)} of this machine's byte "
            "order"
        )


def require_fit(out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not (hasattr(out, "shape") and hasattr(out, "dtype")):
        raise ConfigurationError(f"got out of type {type(out).__name__}: pass an array of the same kind, or none")
    if tuple(out.shape) != tuple(shape) or np.dtype(out.dtype) != np.dtype(dtype):
        raise ConfigurationError(
            f"got out of shape {tuple(out.shape)} and dtype {out.dtype}: the result has shape {tuple(shape)} and "
            f"dtype {np.dtype(dtype)}"
        )


def require_writable(array: Any, what: str) -> None:
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ConfigurationError(f"got a read-only {what}: the result goes there; pass a copy, or other memory")


def require_out(out: Any, array: np.ndarray[Any, Any], shape: tuple[int, ...], in_place: bool) -> None:
    """Raise `ConfigurationError` unless ``out`` can receive a result of this shape."""
    if not isinstance(out, np.ndarray):
        raise ConfigurationError(
            f"got an ndarray and out of type {type(out).__name__}: the result of an ndarray is in "
            "host memory; pass an ndarray as out (dest), or none"
        )
    require_plain(out, "out (dest)")
    require_fit(out, shape, array.dtype)
    require_writable(out, "out")
    if (in_place and out is array) or not np.may_share_memory(array, out):
        return
    # Otherwise memory would be overwritten before it is read.
    same = array.__array_interface__["data"] == out.__array_interface__["data"] and array.strides == out.strides
    if not (in_place and same and array.shape == out.shape):
        raise ConfigurationError("got an out that overlaps the array in memory: pass the array itself or other memory")
