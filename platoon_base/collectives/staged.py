"""Collective calls through the host, for devices that have no collectives."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base.collectives.base import Collective, require_dtype, require_fit, result_shape
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign


class StagedCollective(Collective):
    """Copies device arrays to the host, combines them there, and copies the result back.

    A device array has ``shape``, ``dtype``, ``flags``, ``np.asarray(a)``, and ``a.write(ndarray)``
    or ``a[...] = ndarray``. `close` closes ``host`` too. The module
    that defines the array's class has ``empty``, as pygpu's.
    """

    def __init__(self, host: Collective) -> None:
        self.rank, self.size = host.rank, host.size
        self._host = host

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        if isinstance(array, np.ndarray):
            return self._host.call(kind, array, op, root, out, timeout_s, feedback)
        with self._refusing():
            out = array if kind == "broadcast" else self._target(kind, array, out)
            staged = self._fetch(array)
        in_place = staged if kind == "broadcast" or (kind == "all_reduce" and staged.flags.owndata) else None
        result = self._host.call(kind, staged, op, root, in_place, timeout_s, feedback)
        return array if kind == "broadcast" and root == self.rank else self._store(out, result, array)

    def close(self) -> None:
        self._host.close()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Report to the others if this rank raises before it makes the call."""
        try:
            yield
        except BaseException as exc:
            if hasattr(self._host, "refuse"):  # Only a group of several ranks can fail.
                self._host.refuse(exc)
            raise

    def _target(self, kind: str, array: Any, out: Any) -> Any:
        """Check and return ``out``, or return a new array."""
        require_dtype(array)
        shape = result_shape(kind, tuple(array.shape), self.size)
        if out is None:
            return _empty(array, shape)
        if isinstance(out, np.ndarray):
            raise ConfigurationError("got a device array and an ndarray as out: pass a device array, or none")
        require_fit(out, shape, array.dtype)
        return out

    def _fetch(self, array: Any) -> np.ndarray[Any, Any]:
        """Copy to the host; memory that the result does not own is not changed by an all-reduce."""
        if not hasattr(array, "__array__"):
            raise ConfigurationError(
                f"got {type(array).__name__}: pass a NumPy array or a device array such as GpuArray"
            )
        # The result may be read-only, or a view of the device's memory.
        staged = np.asarray(array)
        return staged if staged.flags.carray and staged.flags.owndata else np.array(staged, order="C")

    def _store(self, out: Any, staged: np.ndarray[Any, Any], array: Any) -> Any:
        """Copy the result of a call on ``array`` to ``out``, and return it."""
        if staged.size == 0:
            return out
        if hasattr(out, "write") and out.flags.c_contiguous:
            out.write(staged)
        else:
            assign(out, staged)
        return out


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    return sys.modules[type(like).__module__].empty(shape, dtype=like.dtype, context=like.context)
