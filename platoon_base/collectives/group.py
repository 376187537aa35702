"""The collectives of one worker: a group is formed at the first call, and the back end chosen by the kind of array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from platoon_base.collectives.base import Collective
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.parameters import is_device_array
from platoon_base.session import Session

__all__ = ["CollectiveFactory", "Collectives", "form"]


class CollectiveFactory(Protocol):
    """Forms the groups of a job; every call is a meeting of all workers."""

    def host(self, timeout_s: float) -> Collective:
        """Form a group that takes ndarrays."""
        ...

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        """Form a group that takes the GpuArrays of a context; ``host()`` gives the one that takes ndarrays."""
        ...


class Collectives:
    """Chooses the group for an array, and forms it when it is needed first.

    Parameters
    ----------
    factory : CollectiveFactory
    late : bool
        Whether this worker joined late: groups are made of those that were launched together.
    """

    def __init__(self, factory: CollectiveFactory, late: bool) -> None:
        self._factory = factory
        self._late = late
        self._host: Collective | None = None
        self._devices: dict[Any, Collective] = {}

    def of(self, array: Any, timeout_s: float) -> Collective:
        """Return the group for this kind of array.

        Raises
        ------
        ConfigurationError
            If there is none for it, or this worker joined late.
        """
        if isinstance(array, np.ndarray):
            return self._host or self._form_host(timeout_s)
        if is_device_array(array):
            return self._devices.get(array.context) or self._form_device(array.context, timeout_s)
        raise ConfigurationError(
            f"got {type(array).__name__}: collectives take NumPy arrays and GpuArrays; use numpy.asarray(...)"
        )

    def close(self) -> None:
        """Close every group; a second call does nothing."""
        for group in (*self._devices.values(), *filter(None, [self._host])):
            group.close()

    def _form_host(self, timeout_s: float) -> Collective:
        self._require_in_step()
        self._host = self._factory.host(timeout_s)
        return self._host

    def _form_device(self, context: Any, timeout_s: float) -> Collective:
        self._require_in_step()
        group = self._factory.device(context, lambda: self._host or self._form_host(timeout_s), timeout_s)
        self._devices[context] = group
        return group

    def _require_in_step(self) -> None:
        if self._late:
            raise ConfigurationError(
                "this worker joined late: all-reduce and the like need a fixed group, that of the workers launched "
                "together; train asynchronously here (sync_params), or start the job anew with more workers"
            )


def form(
    session: Session,
    name: str,
    rank: int,
    create: Callable[[tuple[int, ...], int], Collective],
    attach: Callable[[tuple[int, ...], int], Collective],
    timeout_s: float,
) -> Collective:
    """Let the lowest rank create the shared part of a group and the others attach to it.

    Parameters
    ----------
    create, attach : callable
        Called with the ranks of the group and this worker's place among them.

    Raises
    ------
    PlatoonError
        On every rank, if it cannot be created.
    """
    ranks = tuple(session.gather(f"form {name}", b"", timeout_s).ranks)
    index = ranks.index(rank)
    if index == 0:
        try:
            group = create(ranks, index)
        except BaseException as exc:
            session.gather(f"formed {name}", repr(exc).encode()[:500], timeout_s)
            raise
        session.gather(f"formed {name}", b"", timeout_s)
        return group
    failures = session.gather(f"formed {name}", b"", timeout_s).notes
    if failures:
        text = ", ".join(note.decode(errors="replace") for note in failures.values())
        raise PlatoonError(f"rank {ranks[0]} could not create the {name}: {text}")
    return attach(ranks, index)
