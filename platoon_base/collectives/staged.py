"""Collective calls through the host, for devices that have no collectives."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from platoon_base.collectives.base import Collective, require_dtype, require_fit
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign

__all__ = ["StagedCollective"]


class StagedCollective:
    """Copies device arrays to the host, combines them there, and copies the result back.

    A device array has ``shape``, ``dtype``, ``flags``, ``np.asarray(a)``, and ``a.write(ndarray)``
    or ``a[...] = ndarray``. `close` closes ``host`` too. ``empty(like, shape)`` makes a device
    array; the default calls ``empty`` in the module that defines the array's class, as for pygpu.
    """

    def __init__(self, host: Collective, empty: Callable[[Any, tuple[int, ...]], Any] | None = None) -> None:
        self.rank, self.size = host.rank, host.size
        self._host = host
        self._empty = _empty if empty is None else empty

    def all_reduce(
        self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float, feedback: Any = None
    ) -> Any:
        if isinstance(array, np.ndarray):
            return self._host.all_reduce(array, op, out, timeout_s=timeout_s, feedback=feedback)
        with self._refusing():
            out = self._target(array, 0, out)
            staged = _fetch(array)
        return _store(out, self._host.all_reduce(staged, op, staged, timeout_s=timeout_s, feedback=feedback))

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float) -> Any:
        if isinstance(array, np.ndarray):
            return self._host.broadcast(array, root, timeout_s=timeout_s)
        with self._refusing():
            staged = _fetch(array)
        self._host.broadcast(staged, root, timeout_s=timeout_s)
        return array if root == self.rank else _store(array, staged)

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float) -> Any:
        if isinstance(array, np.ndarray):
            return self._host.all_gather(array, out, timeout_s=timeout_s)
        with self._refusing():
            out = self._target(array, 1, out)
            staged = _fetch(array)
        return _store(out, self._host.all_gather(staged, timeout_s=timeout_s))

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        if isinstance(array, np.ndarray):
            return self._host.reduce_scatter(array, op, out, timeout_s=timeout_s)
        with self._refusing():
            out = self._target(array, -1, out)
            staged = _fetch(array)
        return _store(out, self._host.reduce_scatter(staged, op, timeout_s=timeout_s))

    def barrier(self, *, timeout_s: float) -> None:
        self._host.barrier(timeout_s=timeout_s)

    def close(self) -> None:
        self._host.close()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Report to the others if this rank raises before it makes the call."""
        try:
            yield
        except BaseException as exc:
            if hasattr(self._host, "refuse"):  # Only groups of several ranks can break.
                self._host.refuse(exc)
            raise

    def _target(self, array: Any, more: int, out: Any) -> Any:
        """Check and return ``out``, or return a new array; it has ``more`` extra dimensions."""
        require_dtype(array)
        shape = tuple(array.shape)
        if more < 0 and shape[:1] != (self.size,):
            raise ConfigurationError(f"got shape {shape}: the first axis must be the number of ranks, {self.size}")
        shape = {-1: shape[1:], 0: shape, 1: (self.size, *shape)}[more]
        if out is None:
            return self._empty(array, shape)
        if isinstance(out, np.ndarray):
            raise ConfigurationError("got a device array and an ndarray as out: pass a device array, or none")
        require_fit(out, shape, array.dtype)
        return out


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    return sys.modules[type(like).__module__].empty(shape, dtype=like.dtype, context=like.context)


def _fetch(array: Any) -> np.ndarray[Any, Any]:
    if not hasattr(array, "__array__"):
        raise ConfigurationError(f"got {type(array).__name__}: pass a NumPy array or a device array such as GpuArray")
    # The result may be read-only, or a view of the device's memory.
    staged = np.asarray(array)
    return staged if staged.flags.carray and staged.flags.owndata else np.array(staged, order="C")


def _store(array: Any, staged: np.ndarray[Any, Any]) -> Any:
    if staged.size == 0:
        return array
    if hasattr(array, "write") and array.flags.c_contiguous:
        array.write(staged)
    else:
        assign(array, staged)
    return array
