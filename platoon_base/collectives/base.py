"""What every collective back end offers, and the arguments that all of them refuse alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import ConfigurationError

__all__ = ["DTYPES", "OPS", "Collective", "Peers", "canonical_op", "require_dtype", "require_fit"]

OPS = ("sum", "prod", "max", "min", "mean")
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")

# The names that the original Platoon and pygpu use too.
_OTHER_NAMES = {
    "+": "sum", "add": "sum", "*": "prod", "product": "prod", "mul": "prod", "maximum": "max", "minimum": "min",
    "average": "mean", "avg": "mean",
}  # fmt: skip
_KNOWN_DTYPES = frozenset(np.dtype(name) for name in DTYPES)


class Peers(Protocol):
    """Looks after the other ranks of a group, so that nobody waits for one that will not come."""

    def why_absent(self, ranks: Sequence[int]) -> str:
        """Tell why one of these ranks of the job will never make the call that this one waits in; empty if all may."""
        ...


class Collective(Protocol):
    """One group of ranks that operates on arrays together.

    Every rank makes the same calls in the same order, with arrays of the same shape and dtype. A call ends within
    seconds if a rank that it needs has left or died, and with a deadline otherwise. Which arrays a back end takes
    is its own: ndarrays on the host, GpuArrays on devices. Nothing is cast.

    Attributes
    ----------
    rank : int
        This worker's place in the group, 0 .. size - 1.
    size : int
        Number of ranks.
    """

    rank: int
    size: int

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        """Combine the arrays of all ranks element by element; every rank gets the same bits.

        Parameters
        ----------
        array : array, any shape, of a dtype in `DTYPES`
        op : {"sum", "prod", "max", "min", "mean"}
            Integers wrap around; their mean is the sum divided by the size, rounded toward zero.
        out : array like ``array``, optional
            Where the result goes; may be ``array`` itself. A new array by default.
        timeout_s : float

        Returns
        -------
        array
            ``out``, or the new one. Devices may still be computing it: it is ready for whatever is queued next.

        Raises
        ------
        WorkerLostError
            If a rank of the group left, died or will not come.
        CollectiveTimeoutError
            If some rank did not come in time.
        ConfigurationError
            If an argument cannot work, or differs between the ranks where that can be seen.
        """
        ...

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float) -> Any:
        """Copy the array of rank ``root`` of the group into ``array`` of all others; returns ``array``."""
        ...

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float) -> Any:
        """Stack the arrays of all ranks: ``shape`` becomes ``(size, *shape)``, in the order of the ranks."""
        ...

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        """Combine as `all_reduce` does, and keep this rank's part: ``(size, *shape)`` becomes ``shape``."""
        ...

    def barrier(self, *, timeout_s: float) -> None:
        """Wait until every rank of the group has come here."""
        ...

    def close(self) -> None:
        """Let go of memory and connections, without waiting for the others; a second call does nothing."""
        ...


def canonical_op(op: str) -> str:
    """Return one of `OPS` for a name of an operation, such as ``"+"`` or ``"maximum"``."""
    name = _OTHER_NAMES.get(op, op) if isinstance(op, str) else op
    if name not in OPS:
        raise ConfigurationError(f"got op={op!r}: it must be one of {', '.join(OPS)}")
    return name


def require_dtype(array: Any) -> None:
    """Raise `ConfigurationError` unless the dtype of an array is one that all back ends know."""
    if array.dtype not in _KNOWN_DTYPES:
        raise ConfigurationError(
            f"got an array of dtype {array.dtype}: collectives take {', '.join(DTYPES)} of this machine's byte order"
        )


def require_fit(out: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise `ConfigurationError` unless ``out`` can hold a result of this shape and dtype."""
    if tuple(out.shape) != tuple(shape) or np.dtype(out.dtype) != np.dtype(dtype):
        raise ConfigurationError(
            f"got out of shape {tuple(out.shape)} and dtype {out.dtype}: the result has shape {tuple(shape)} and "
            f"dtype {np.dtype(dtype)}"
        )
