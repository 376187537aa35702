"""The collective of a single worker; it is also the reference for all others."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from platoon_base.collectives.base import (
    Collective,
    canonical_op,
    canonical_root,
    require_dtype,
    require_fit,
    require_out,
    require_timeout,
    require_writable,
    result_shape,
)
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign


class LocalCollective(Collective):
    """A group of one rank, for ndarrays and arrays with ``copy``, ``reshape``, item assignment."""

    rank, size = 0, 1

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        require_timeout(timeout_s)
        canonical_op(op)
        require_dtype(array)
        shape = result_shape(kind, array.shape, 1)
        if kind != "broadcast":
            return _copied(array, shape, out, in_place=kind in ("all_reduce", "barrier"))
        canonical_root(root, 1)
        require_writable(array, "array")
        return array


class LocalFactory:
    """Forms the groups of a single worker."""

    compresses = False

    def host(self, timeout_s: float) -> Collective:
        return LocalCollective()

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        return LocalCollective()

    def tensors(self, device: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        group: Collective = importlib.import_module("platoon_base.collectives.tensors").HostTensors(host())
        return group

    def nccl(self, ordinal: int | None, timeout_s: float) -> None:
        """Return None: there is no other rank."""


def _copied(array: Any, shape: tuple[int, ...], out: Any, in_place: bool) -> Any:
    if out is None:
        return (np.array(array, order="C") if isinstance(array, np.ndarray) else array.copy()).reshape(shape)
    if isinstance(array, np.ndarray):
        require_out(out, array, shape, in_place)
    elif isinstance(out, np.ndarray):
        raise ConfigurationError("got a device array and an ndarray as out: pass a device array, or none")
    else:
        require_fit(out, shape, array.dtype)
    if out is not array:
        assign(out, array.reshape(shape))
    return out
