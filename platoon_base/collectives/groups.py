"""The process groups of one worker, formed at the first call: a back end per kind of array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from platoon_base.channels.call_lock import CallLock
from platoon_base.channels.client import ControlClient
from platoon_base.collectives.base import Collective
from platoon_base.coordination.messages import FormGroup, Gathered
from platoon_base.device_arrays import is_device_array
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.hosts import World
from platoon_base.parameters import is_tensor
from platoon_base.shm.liveness import Liveness
from platoon_base.system.text import to_bytes

_WHY_BYTES = 500


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
        # That of the host by None, a Collective by device, an NcclGroup or None by ordinal.
        self._groups: dict[Any, Any] = {}
        self._forming = CallLock()  # Two threads may make the first call.

    def of(self, array: Any, timeout_s: float) -> Collective:
        """Return the group for this kind of array; raises `ConfigurationError` if there is none."""
        if isinstance(array, np.ndarray):
            host: Collective = self._groups.get(None) or self._form(None, self._factory.host, timeout_s)
            return host
        if is_device_array(array):
            return self._of_device(array.context, self._factory.device, timeout_s)
        if is_tensor(array):
            return self._of_device(array.device, self._factory.tensors, timeout_s)
        raise ConfigurationError(
            f"got {type(array).__name__}: collectives take NumPy arrays, GpuArrays and torch's tensors; use "
            "numpy.asarray(...)"
        )

    def nccl(self, ordinal: int, timeout_s: float) -> Any:
        return self._form(ordinal, functools.partial(self._factory.nccl, ordinal), timeout_s)

    def close(self) -> None:
        for group in filter(None, reversed(self._groups.values())):
            group.close()

    def _of_device(self, device: Any, make: Callable[..., Collective], timeout_s: float) -> Collective:
        def form(left_s: float) -> Collective:
            return make(device, lambda: self._formed(None, self._factory.host, left_s), left_s)

        found: Collective = self._groups.get(device) or self._form(device, form, timeout_s)
        return found

    def _form(self, key: Any, make: Callable[[float], Any], timeout_s: float) -> Any:
        self._require_in_step()
        with self._forming.take("the first all-reduce or the like", timeout_s) as left_s:
            return self._formed(key, make, left_s)

    def _formed(self, key: Any, make: Callable[[float], Any], timeout_s: float) -> Any:
        if key not in self._groups:
            self._groups[key] = make(timeout_s)
        return self._groups[key]

    def _require_in_step(self) -> None:
        if self._late:
            raise ConfigurationError(
                "this worker joined late, and all-reduce and similar calls need the fixed group "
                "of workers that were launched together: train asynchronously here "
                "(sync_params), or start the job again with more workers. If you start the "
                "workers yourself, list them for the controller: Controller(devices=[...]), or -D"
            )


class Note(msgspec.Struct):
    """A rank's message about a step; ``elsewhere``: another rank's failure caused its own."""

    port: int = 0
    token: bytes = b""
    failure: str = ""
    elsewhere: bool = False


class ElsewhereError(PlatoonError):
    """A link cannot be opened because of a failure on the other side, which reports it."""


class Membership:
    """All workers launched together, who meet over the control plane to form groups."""

    def __init__(self, client: ControlClient, rank: int, size: int, liveness: Liveness, world: World) -> None:
        self._client = client
        self.rank = rank
        self.size = size
        self.liveness = liveness
        self.world = world

    def meet(self, name: str, note: bytes, timeout_s: float) -> dict[int, bytes]:
        """Wait for all workers; return their notes in rank order. All raise if one is missing."""
        reply = self._client.wait_for_all(FormGroup(name=name, note=note, timeout_s=timeout_s), Gathered)
        missing = sorted(set(range(self.size)) - set(reply.ranks))
        if missing:
            why = self.liveness.why_absent(missing) or f"ranks {missing} have disconnected"
            raise WorkerLostError(f"cannot form a group of all {self.size} workers: {why}")
        return dict(zip(reply.ranks, reply.values))

    def step(self, what: str, do: Callable[[], Note | None], timeout_s: float) -> dict[int, Note]:
        """Make one step of forming a group, wait for the others, and raise on all ranks if it failed on one."""
        error: Exception | None = None
        try:
            note = do() or Note()
        # Any kind: the others wait for this rank and must get the failure.
        except Exception as exc:
            why = to_bytes(str(exc) or repr(exc), _WHY_BYTES).decode(errors="replace")
            error, note = exc, Note(failure=why, elsewhere=isinstance(exc, ElsewhereError))
        try:
            raw = self.meet(what, msgspec.msgpack.encode(note), timeout_s)
        except PlatoonError as exc:
            raise exc if error is None else error from exc  # This rank's own failure has priority.
        if error is not None and not isinstance(error, ElsewhereError):
            raise error
        notes = {rank: msgspec.msgpack.decode(each, type=Note) for rank, each in raw.items()}
        for rank, each in sorted(notes.items(), key=lambda pair: pair[1].elsewhere):
            if each.failure:
                where = f" on {self.world.named(self.world.host_of(rank))}" if self.world.several else ""
                raise PlatoonError(f"cannot {what}: rank {rank}{where}: {each.failure}")
        return notes
