"""The process groups of one worker, formed at the first call: a back end per kind of array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from platoon_base.channels.call_lock import CallLock
from platoon_base.channels.client import ControlClient
from platoon_base.collectives.base import Collective
from platoon_base.coordination.messages import FormGroup, Gathered
from platoon_base.device_arrays import is_device_array
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.parameters import is_tensor
from platoon_base.shm.liveness import Liveness
from platoon_base.system.text import to_bytes


class CollectiveFactory(Protocol):
    """Forms the groups of a job; every method is a collective call."""

    compresses: bool

    def host(self, timeout_s: float) -> Collective: ...

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective: ...

    def tensors(self, device: Any, host: Callable[[], Collective], timeout_s: float) -> Collective: ...

    def nccl(self, ordinal: int | None, timeout_s: float) -> Any:
        """Form an NCCL group for memory given by address; None on all ranks if NCCL is unusable."""
        ...


class Collectives:
    """Returns the group for an array, formed at first use; a worker that joined late has none."""

    def __init__(self, factory: CollectiveFactory, late: bool) -> None:
        self._factory = factory
        self.compresses = factory.compresses
        self._late = late
        self._host: Collective | None = None
        # A Collective by device; an NcclGroup or None by ordinal.
        self._devices: dict[Any, Any] = {}
        self._forming = CallLock()  # Two threads may make the first call.

    def of(self, array: Any, timeout_s: float) -> Collective:
        """Return the group for this kind of array; raises `ConfigurationError` if there is none."""
        if isinstance(array, np.ndarray):
            return self._host or self._form_host(timeout_s)
        if is_device_array(array):
            device = self._devices.get(array.context) or self._form(self._factory.device, array.context, timeout_s)
            return cast(Collective, device)
        if is_tensor(array):
            tensors = self._devices.get(array.device) or self._form(self._factory.tensors, array.device, timeout_s)
            return cast(Collective, tensors)
        raise ConfigurationError(
            f"got {type(array).__name__}: collectives take NumPy arrays, GpuArrays and torch's tensors; use "
            "numpy.asarray(...)"
        )

    def nccl(self, ordinal: int, timeout_s: float) -> Any:
        self._require_in_step()
        with self._forming.take("the first all-reduce or the like", timeout_s) as left_s:
            if ordinal not in self._devices:
                self._devices[ordinal] = self._factory.nccl(ordinal, left_s)
            return self._devices[ordinal]

    def close(self) -> None:
        for group in filter(None, (*self._devices.values(), self._host)):
            group.close()

    def _form_host(self, timeout_s: float) -> Collective:
        self._require_in_step()
        with self._forming.take("the first all-reduce or the like", timeout_s) as left_s:
            return self._host_group(left_s)

    def _host_group(self, timeout_s: float) -> Collective:
        self._host = self._host or self._factory.host(timeout_s)
        return self._host

    def _form(self, make: Callable[..., Collective], where: Any, timeout_s: float) -> Any:
        self._require_in_step()
        with self._forming.take("the first all-reduce or the like", timeout_s) as left_s:
            if where not in self._devices:
                self._devices[where] = make(where, functools.partial(self._host_group, left_s), left_s)
        return self._devices[where]

    def _require_in_step(self) -> None:
        if self._late:
            raise ConfigurationError(
                "this worker joined late, and all-reduce and similar calls need the fixed group "
                "of workers that were launched together: train asynchronously here "
                "(sync_params), or start the job again with more workers. If you start the "
                "workers yourself, list them for the controller: Controller(devices=[...]), or -D"
            )


class Membership:
    """Forms groups of all workers launched together, by rendezvous over the control plane."""

    def __init__(self, client: ControlClient, rank: int, size: int, liveness: Liveness) -> None:
        self._client = client
        self.rank = rank
        self._size = size
        self.liveness = liveness

    def meet(self, name: str, note: bytes, timeout_s: float) -> dict[int, bytes]:
        """Wait for all workers; return their notes in rank order. All raise if one is missing."""
        reply = self._client.wait_for_all(FormGroup(name=name, note=note, timeout_s=timeout_s), Gathered)
        missing = sorted(set(range(self._size)) - set(reply.ranks))
        if missing:
            why = self.liveness.why_absent(missing) or f"ranks {missing} have disconnected"
            raise WorkerLostError(f"cannot form a group of all {self._size} workers: {why}")
        return dict(zip(reply.ranks, reply.values))

    def form(
        self,
        name: str,
        create: Callable[[tuple[int, ...], int], Collective],
        attach: Callable[[tuple[int, ...], int], Collective],
        timeout_s: float,
    ) -> Collective:
        """Form a group: the lowest rank creates the shared part, the others attach to it."""
        ranks = tuple(self.meet(f"form {name}", b"", timeout_s))
        index = ranks.index(self.rank)
        if index == 0:
            try:
                group = create(ranks, index)
            except BaseException as exc:
                self.meet(f"formed {name}", to_bytes(repr(exc), 500), timeout_s)
                raise
            self.meet(f"formed {name}", b"", timeout_s)
            return group
        failure = self.meet(f"formed {name}", b"", timeout_s)[ranks[0]]
        if failure:
            raise PlatoonError(f"rank {ranks[0]} could not create the {name}: {failure.decode(errors='replace')}")
        return attach(ranks, index)
