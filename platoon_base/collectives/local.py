"""The collective of a job of one: the reference of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from platoon_base.collectives.base import Collective, canonical_op, require_dtype, require_fit
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign

__all__ = ["LocalCollective", "LocalFactory"]


class LocalCollective:
    """A group of one rank, on ndarrays or anything with ``copy``, ``reshape`` and item assignment: GpuArrays."""

    rank, size = 0, 1

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float = 0.0) -> Any:
        """See `Collective.all_reduce`."""
        canonical_op(op)
        require_dtype(array)
        return _copied(array, array.shape, out)

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float = 0.0) -> Any:
        """See `Collective.broadcast`."""
        require_dtype(array)
        if root != 0:
            raise ConfigurationError(f"got root={root!r}: this group has the one rank 0")
        return array

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float = 0.0) -> Any:
        """See `Collective.all_gather`."""
        require_dtype(array)
        return _copied(array, (1, *array.shape), out)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float = 0.0) -> Any:
        """See `Collective.reduce_scatter`."""
        canonical_op(op)
        require_dtype(array)
        if not array.shape or array.shape[0] != 1:
            raise ConfigurationError(f"got shape {array.shape}: the first axis must be the number of ranks, 1")
        return _copied(array, array.shape[1:], out)

    def barrier(self, *, timeout_s: float = 0.0) -> None:
        """See `Collective.barrier`."""

    def close(self) -> None:
        """See `Collective.close`."""


class LocalFactory:
    """Forms the groups of a job of one."""

    def host(self, timeout_s: float) -> Collective:
        """See `CollectiveFactory.host`."""
        return LocalCollective()

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        """See `CollectiveFactory.device`."""
        return LocalCollective()


def _copied(array: Any, shape: tuple[int, ...], out: Any) -> Any:
    if out is None:
        return (np.array(array, order="C") if isinstance(array, np.ndarray) else array.copy()).reshape(shape)
    require_fit(out, shape, array.dtype)
    if out is not array:
        assign(out, array.reshape(shape))
    return out
