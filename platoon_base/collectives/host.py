"""Collective operations on ndarrays of processes of one host, through POSIX shared memory."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np

from platoon_base.collectives.base import (
    Collective,
    canonical_op,
    canonical_root,
    require_dtype,
    require_out,
    require_timeout,
    require_writable,
    result_shape,
)
from platoon_base.collectives.groups import Membership
from platoon_base.collectives.host_exchange import (
    AGAIN,
    BROKEN,
    CHUNK_BYTES,
    ENDED,
    HAVE_FUSED,
    HAVE_NUMPY,
    REASON_BYTES,
    Exchange,
    FusedExchange,
    GroupSegment,
    Memory,
    NumpyExchange,
    describe,
    headline,
)
from platoon_base.dtypes import Array
from platoon_base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    ConfigurationError,
    PlatoonError,
    WorkerLostError,
)
from platoon_base.shm.liveness import Liveness, stalled_text
from platoon_base.shm.segments import HiddenName
from platoon_base.system.process import awake
from platoon_base.system.text import to_bytes
from platoon_base.timeouts import timeout

PATIENCE_S, MAX_PATIENCE_S = 0.05, 0.2
_HEADLINES = 1024  # Scripts repeat the same few calls.
_IN_PLACE = ("all_reduce", "barrier")
LOCK_BYTE = 64  # The rank that writes the reason locks this byte of the segment.
_LOCK_S = 1.0  # The holder of the lock may be suspended.
FAILED, DIFFERED = 1, 2


class HostCollective(Collective):
    """One rank of a group that shares a segment: one rank calls `create`, then the others `attach`.

    Arrays pass through slots in pieces, so the size of the segment does not depend on them. A
    failed call breaks the group, because ranks do not know how far the others got: all waits end
    and further calls raise. Invalid arguments on one rank break the group too: its next call would
    be matched with a different call of the others.
    """

    _spins: ClassVar[dict[str, int]] = {}  # `FusedExchange` gets these instead of its defaults.

    def __init__(self, shared: GroupSegment, index: int, liveness: Liveness, fused: bool | None) -> None:
        self.rank, self.size = index, len(shared.ranks)
        self.name = shared.segment.name
        self._shared = shared
        self._failure = GroupFailure(shared, index)
        self._ranks = shared.ranks
        self._liveness = liveness
        # Reentrant: a signal handler may call `close` during a call of the same thread.
        self._busy = threading.RLock()
        self._inside = False  # True while the thread that holds the lock is in a call.
        self._closing = False
        self._refused: BaseException | None = None
        self._headlines: dict[tuple[Any, ...], Array] = {}
        memory = shared.open_memory
        memory.set_cores(index, os.sched_getaffinity(0))
        self._exchange: Exchange = _exchange(memory, index, shared.direct_bytes, fused, self._spins)

    @classmethod
    def create(
        cls,
        name: str | HiddenName,
        ranks: Iterable[int],
        index: int,
        liveness: Liveness,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        fused: bool | None = None,
    ) -> HostCollective:
        """Create the segment; `close` removes its name, unless `unlink` has done so.

        Each group needs its own ``name``. ``ranks`` are the job's ranks in the group, ascending,
        and ``index`` is this worker's index among them. ``chunk_bytes`` is the size of a slot, a
        multiple of 4096. The C extension is used if it was built, unless ``fused`` says otherwise.
        """
        return cls._opened(GroupSegment.create(name, _checked(ranks, index), chunk_bytes), index, liveness, fused)

    @classmethod
    def attach(
        cls, name: str | HiddenName, ranks: Iterable[int], index: int, liveness: Liveness, *, fused: bool | None = None
    ) -> HostCollective:
        """Open the segment that another rank has created."""
        return cls._opened(GroupSegment.attach(name, _checked(ranks, index)), index, liveness, fused)

    @classmethod
    def _opened(cls, shared: GroupSegment, index: int, liveness: Liveness, fused: bool | None) -> HostCollective:
        try:
            return cls(shared, index, liveness, fused)
        except BaseException:
            shared.close()
            shared.unlink()
            raise

    @classmethod
    def form(cls, membership: Membership, name: str | HiddenName, timeout_s: float) -> HostCollective:
        """Form the group of all workers of a job on this host, a collective call; all ranks raise errors."""
        ranks, index, made = range(membership.size), membership.rank, []

        def create() -> None:
            if index == 0:
                made.append(cls.create(name, ranks, index, membership.liveness))

        membership.step("form the collective of this host", create, timeout_s)
        return made[0] if made else cls.attach(name, ranks, index, membership.liveness)

    def refuse(self, exc: BaseException) -> None:
        """Break the group because this rank does not make a call; report the reason."""
        if self.size == 1:
            return
        self._refused = exc
        if self._busy.acquire(blocking=False):  # Otherwise the next call of this rank reports it.
            try:
                self._break(exc, self._failure.refused(self._exchange.calls + 1, exc))
            finally:
                self._busy.release()

    def unlink(self) -> None:
        """Remove the segment's name; call it after all ranks have attached."""
        self._shared.unlink()

    def close(self) -> None:
        """Release the memory; a waiting call ends with an error first."""
        self._closing = True
        if self._shared.memory is not None:
            self._exchange.leave()
        if self._busy.acquire(timeout=timeout("end")):
            try:
                if self._inside:
                    exc = self._failure.closed_meanwhile(self._exchange.calls)
                    # A signal handler interrupted the call, which ends after the handler returns.
                    # The group is broken now, since the handler may end the process.
                    self._break(exc, str(exc))
                else:
                    self._release()
            finally:
                self._busy.release()
        self.unlink()

    def _release(self) -> None:
        """Release the memory; the caller holds the lock."""
        if self._shared.memory is not None:
            self._exchange.close()
            self._exchange = Exchange()  # Further calls raise.
            self._shared.close()

    def _headline(self, kind: str, op: str, root: int, array: Array, timeout_s: float) -> Array:
        require_timeout(timeout_s)
        if not isinstance(op, str):
            canonical_op(op)
        if not isinstance(array, np.ndarray):
            raise ConfigurationError(f"got {type(array).__name__}: collectives on the host take NumPy arrays")
        if type(array) is not np.ndarray:
            require_dtype(array)
        key = (kind, op, root, array.dtype, array.shape)
        header = self._headlines.get(key)
        if header is None:
            name = canonical_op(op)
            require_dtype(array)
            result_shape(kind, array.shape, self.size)
            elements = array.size // (self.size if kind == "reduce_scatter" else 1)
            header = headline(kind, name, root, array, elements)
            if len(self._headlines) < _HEADLINES:
                self._headlines[key] = header
        return header

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        """Make a call, floats combined in the order of the ranks, float16 in float32.

        If ``out`` is not plain memory, a copy of it is used.
        """
        try:
            if kind == "broadcast":
                root = canonical_root(root, self.size)
            header = self._headline(kind, op, root, array, timeout_s)
            plain = _plain(array)
            if kind == "broadcast":
                require_writable(array, "array")
                result = plain
            else:
                shape = result_shape(kind, array.shape, self.size)
                if out is None:
                    out = np.empty(shape, array.dtype)
                elif out is not array or kind not in _IN_PLACE or not array.flags.carray:
                    require_out(out, array, shape, in_place=kind in _IN_PLACE)
                result = out if out.flags.carray else np.empty(shape, array.dtype)
        except BaseException as exc:
            self.refuse(exc)
            raise
        self._call(header, plain, result, timeout_s)
        if result is not out:
            out[...] = result
        return out

    def _call(self, header: Array, array: Array, out: Array, timeout_s: float) -> None:
        deadline = awake() + timeout_s
        if not self._busy.acquire(blocking=False):
            self._refuse_second()
        if self._inside:
            self._busy.release()
            self._refuse_second()
        try:
            self._inside = True
            if self._refused is not None:
                self._break(self._refused, self._failure.refused(self._exchange.calls + 1, self._refused))
            status = self._exchange.begin(header, array, out, min(PATIENCE_S, timeout_s))
            if status != ENDED:
                self._wait_until_done(status, header, deadline, timeout_s)
        except BaseException as exc:
            text = str(exc) if isinstance(exc, PlatoonError) else f"{self._named(header)} ended with {exc!r}"
            self._break(exc, text)
            raise
        finally:
            self._inside = False
            if self._closing:
                self._release()
            self._busy.release()

    def _break(self, exc: BaseException, text: str) -> None:
        self._failure.break_group(exc, text)
        if self._shared.memory is not None:
            self._exchange.report(self._shared.memory.broken, self._failure.written())

    def _refuse_second(self) -> NoReturn:
        exc = ConfigurationError(
            "got a call during another call of this group, by another thread or a signal "
            "handler, so the ranks could not tell the calls apart: use one group per thread"
        )
        self.refuse(exc)
        raise exc

    def _wait_until_done(self, status: int, header: Array, deadline: float, timeout_s: float) -> None:
        patience = PATIENCE_S
        while status == AGAIN:
            patience = min(2 * patience, MAX_PATIENCE_S)
            deadline = self._check_progress(header, deadline, timeout_s)
            status = self._exchange.resume(min(patience, max(deadline - awake(), 0.0)))
        if status == BROKEN:
            raise self._failure.reason()
        if status != ENDED:
            raise self._failure.mismatch(self._exchange.calls, self._exchange.called())

    def _check_progress(self, header: Array, deadline: float, timeout_s: float) -> float:
        """Raise if the call cannot end or has timed out; return the new deadline."""
        if self._closing:
            raise self._failure.closed_meanwhile(self._exchange.calls)
        left = self._exchange.left()
        missing = self._exchange.missing()
        if not missing:
            return deadline
        ranks = [self._ranks[q] for q in missing]
        why = self._why_absent(ranks)
        if not why and set(left) & set(missing):
            who = listed(self._ranks[q] for q in left if q in missing)
            why = f"{who} closed the collective"
        why = why or self._exchange.broken_link()
        # A rank may have made the call just before it left. Then it is not missing.
        if why and set(missing) & set(self._exchange.missing()):
            if self._shared.open_memory.broken:  # That rank reported its failure before it left.
                raise self._failure.reason()
            raise WorkerLostError(f"{self._named(header)} cannot complete: {why}")
        if awake() < deadline:
            return deadline
        # Slow ranks get more time.
        deadline = max(deadline, self._liveness.moved(ranks) + timeout_s)
        now = awake()
        if now < deadline:
            return deadline
        moved = {rank: self._liveness.moved([rank]) for rank in ranks}
        still = [f"rank {rank} ({stalled_text(at)})" for rank, at in moved.items() if at + timeout_s <= now]
        raise CollectiveTimeoutError(
            f"{self._named(header)} waited {timeout_s:g} s for {', '.join(still)}: does every "
            "rank make the same calls in the same order? Read their logs, or pass a longer "
            "timeout_s"
        )

    def _why_absent(self, ranks: list[int]) -> str:
        return self._liveness.why_absent(ranks)

    def _named(self, header: Array) -> str:
        return self._failure.named(self._exchange.calls, header)


class GroupFailure:
    """The reason why a group is broken, in its segment: one rank writes it, the others read it."""

    def __init__(self, shared: GroupSegment, index: int) -> None:
        self._shared = shared
        self.ranks = shared.ranks  # Those of all hosts in a group over hosts.
        self._rank = shared.ranks[index]

    def break_group(self, exc: BaseException, text: str) -> None:
        """Break the group, so that no rank waits for this one. The first reason stays.

        A `ConfigurationError` ends the calls of the others with the same error and text; any other
        error ends them with `WorkerLostError`. After `close` nothing happens.
        """
        self.write(DIFFERED if isinstance(exc, ConfigurationError) else FAILED, text)

    def write(self, how: int, text: str) -> None:
        """Write the reason and ``how`` the group was broken, `FAILED` or `DIFFERED`."""
        memory, segment = self._shared.memory, self._shared.segment
        if memory is None:
            return
        deadline = awake() + _LOCK_S
        while not memory.broken:  # Another rank may break the group at the same time.
            try:
                if segment.try_lock(LOCK_BYTE):
                    if not memory.broken:
                        memory.reason[...] = to_bytes(text, REASON_BYTES)
                        memory.broken = how
                elif awake() >= deadline:
                    memory.broken = how
                else:
                    time.sleep(1e-3)
            finally:  # KeyboardInterrupt may arrive just after the lock was acquired.
                segment.unlock(LOCK_BYTE)

    def reason(self) -> PlatoonError:
        text = self.written() or "the reason is unknown; read the logs"
        if self._shared.open_memory.broken == DIFFERED:
            return ConfigurationError(text)
        return WorkerLostError(
            f"the collective of {listed(self.ranks)} has been unusable since a call of one of them failed: {text}"
        )

    def written(self) -> str:
        return bytes(self._shared.open_memory.reason.item()).decode(errors="replace")

    # Texts of errors. ``call`` is the number of a call, counted from 1.

    def named(self, call: int, header: Array) -> str:
        return f"collective call {call} of rank {self._rank}, {describe(header)},"

    def refused(self, call: int, exc: BaseException) -> str:
        return (
            f"rank {self._rank} refused its collective call {call}, so no rank can complete it: "
            f"{exc if isinstance(exc, PlatoonError) else repr(exc)}"
        )

    def closed_meanwhile(self, call: int) -> WorkerLostError:
        return WorkerLostError(
            f"collective call {call} of rank {self._rank} cannot complete: another thread or a "
            "signal handler of that rank closed this collective meanwhile; close it after the "
            "last call"
        )

    def mismatch(self, call: int, called: Mapping[int, Array]) -> ConfigurationError:
        did = [f"rank {self.ranks[index]} called {describe(header)}" for index, header in called.items()]
        return ConfigurationError(
            f"the ranks differ in collective call {call}: {'; '.join(did)}. Every rank must make the same calls in the "
            "same order, with arrays of the same shape and dtype"
        )


def listed(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def _exchange(memory: Memory, rank: int, direct_bytes: int, fused: bool | None, spins: dict[str, int]) -> Exchange:
    if HAVE_FUSED if fused is None else fused:
        return FusedExchange(memory, rank, direct_bytes, **spins)
    if not HAVE_NUMPY:
        raise BackendUnavailableError(
            "there is no C extension, and without it this processor may reorder memory accesses: install a C compiler "
            "and reinstall platoon-plugins"
        )
    return NumpyExchange(memory, rank, direct_bytes)


def _checked(ranks: Iterable[int], index: int) -> tuple[int, ...]:
    ranks = tuple(operator.index(rank) for rank in ranks)
    if not ranks or list(ranks) != sorted(set(ranks)):
        raise ConfigurationError(f"got ranks={ranks}: a group needs ranks of the job, ascending, each once")
    if not 0 <= index < len(ranks):
        raise ConfigurationError(f"got index={index}: the group has the indices 0 .. {len(ranks) - 1}")
    return ranks


def _plain(array: Array) -> Array:
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")
