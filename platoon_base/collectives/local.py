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
)
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign

__all__ = ["LocalCollective", "LocalFactory"]


class LocalCollective:
    """A group of one rank, for ndarrays and arrays with ``copy``, ``reshape``, item assignment."""

    rank, size = 0, 1

    def all_reduce(
        self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float = 0.0, feedback: Any = None
    ) -> Any:
        _check(array, timeout_s, op)
        return _copied(array, array.shape, out, in_place=True)

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float = 0.0) -> Any:
        _check(array, timeout_s)
        canonical_root(root, 1)
        require_writable(array, "array")
        return array

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float = 0.0) -> Any:
        _check(array, timeout_s)
        return _copied(array, (1, *array.shape), out)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float = 0.0) -> Any:
        _check(array, timeout_s, op)
        if not array.shape or array.shape[0] != 1:
            raise ConfigurationError(f"got shape {array.shape}: the first axis must be the number of ranks, 1")
        return _copied(array, array.shape[1:], out)

    def barrier(self, *, timeout_s: float = 0.0) -> None:
        require_timeout(timeout_s)

    def close(self) -> None:
        """Do nothing: the group has no memory of its own."""


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


def _check(array: Any, timeout_s: float, op: str = "sum") -> None:
    require_timeout(timeout_s)
    canonical_op(op)
    require_dtype(array)


def _copied(array: Any, shape: tuple[int, ...], out: Any, in_place: bool = False) -> Any:
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
