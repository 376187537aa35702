"""Collective operations on ndarrays of processes of one host, through posix shared memory."""

from __future__ import annotations

import operator
import os
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from platoon_base.collectives.base import (
    canonical_op,
    canonical_root,
    require_dtype,
    require_out,
    require_timeout,
    require_writable,
)
from platoon_base.collectives.host_exchange import (
    AGAIN,
    ARRIVED,
    BROKEN,
    BUFFERS,
    ENDED,
    HAVE_FUSED,
    HAVE_NUMPY,
    LEFT,
    Exchange,
    FusedExchange,
    Memory,
    NumpyExchange,
    describe,
    headline,
)
from platoon_base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    ConfigurationError,
    PlatoonError,
    WorkerLostError,
)
from platoon_base.shm.liveness import Liveness
from platoon_base.shm.segments import Segment
from platoon_base.system.text import to_bytes
from platoon_base.views import array_on

__all__ = ["HostCollective"]

Array = np.ndarray[Any, Any]

MAGIC = b"PLTNCLTV"
VERSION = 1
CHUNK_BYTES = 1 << 18
DIRECT_BYTES = 1 << 13  # up to here, several ranks are quicker if each does all the work once than all a part of it
_HEADER = np.dtype(
    [("magic", "S8"), ("version", "u4"), ("size", "u4"), ("chunk_bytes", "u8"), ("direct_bytes", "u8"), ("ranks", "u4"),
     ("buffers", "u4")]
)  # fmt: skip
_REASON = 256  # where in the first page the text begins that tells why the group is broken
_REASON_BYTES = 3072
_LOCK_BYTE = 64  # held by whoever writes that text
_LOCK_S = 1.0  # it is waited for: its holder may be stopped
_CLOSE_S = 5.0  # that a call of another thread has to end in
_FAILED, _DIFFERED = 1, 2  # how a group was broken
_PATIENCE_S, _LONGEST_PATIENCE_S = 0.05, 0.2
_HEADLINES = 1024  # that are kept: scripts repeat the same few calls
_NOTHING = np.zeros(0, np.uint8)


class HostCollective:
    """One rank of a group that shares a segment; see `Collective`. One rank uses `create`, then the others `attach`.

    The segment's size does not depend on the arrays: they pass through slots, piece by piece. A failed call breaks
    the group: nobody can know how far the others came, so the waits of all others end too, and further calls are
    refused. So does one that is refused for its arguments, unless the group is of one: the next call of this rank
    would meet calls of the others that are not the same.

    Attributes
    ----------
    rank, size : int
        See `Collective`.
    name : str
        Of the segment.
    """

    def __init__(
        self, segment: Segment, ranks: tuple[int, ...], index: int, liveness: Liveness, owner: bool, fused: bool | None
    ) -> None:
        header: Any = array_on(segment.buffer, (), _HEADER)
        self.rank, self.size = index, len(ranks)
        self.name = segment.name
        self._segment = segment
        self._ranks = ranks
        self._liveness = liveness
        self._owner = owner
        self._busy = threading.RLock()  # so that a signal handler may close what its own thread is busy with
        self._inside = False  # a call, in the thread that has the lock
        self._closing = False
        self._refused: BaseException | None = None
        self._headlines: dict[tuple[Any, ...], Array] = {}
        self._memory: Memory | None = Memory(segment.buffer, len(ranks), header["chunk_bytes"].item())
        self._memory.tell_cores(index, os.sched_getaffinity(0))
        self._exchange = _exchange(self._memory, index, header["direct_bytes"].item(), fused)

    @classmethod
    def create(
        cls,
        name: str,
        ranks: Iterable[int],
        index: int,
        liveness: Liveness,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        fused: bool | None = None,
    ) -> HostCollective:
        """Make the segment; `close` of this rank removes its name, unless `unlink` has done so.

        Parameters
        ----------
        name : str
            Posix name of the segment, of this group alone.
        ranks : iterable of int
            The job's ranks in the group, ascending: the same on all of them.
        index : int
            This worker's place among them.
        liveness : Liveness
            Asked, with ranks of the job, when a wait takes long.
        chunk_bytes : int
            Of a slot, a multiple of 4096; each rank has `BUFFERS` of them.
        fused : bool, optional
            Whether to use the C extension; by default if it is there.

        Raises
        ------
        BackendUnavailableError
            If there is not enough shared memory, or neither form of this back end runs here.
        """
        ranks = _checked(ranks, index)
        if chunk_bytes < 4096 or chunk_bytes % 4096 or chunk_bytes // len(ranks) < 64:
            raise ConfigurationError(f"got chunk_bytes={chunk_bytes}: must be a multiple of 4096, 64 or more a rank")
        segment = Segment.create(name, Memory.size_bytes(len(ranks), chunk_bytes))
        header: Any = array_on(segment.buffer, (), _HEADER)
        header["version"], header["size"], header["buffers"] = VERSION, len(ranks), BUFFERS
        header["chunk_bytes"] = chunk_bytes
        # Two ranks move as much memory either way, and one meeting a step is less than two.
        header["direct_bytes"] = DIRECT_BYTES if len(ranks) > 2 else 2**62
        header["ranks"] = _fingerprint(ranks)
        header["magic"] = MAGIC
        return cls._opened(segment, ranks, index, liveness, True, fused)

    @classmethod
    def attach(
        cls, name: str, ranks: Iterable[int], index: int, liveness: Liveness, *, fused: bool | None = None
    ) -> HostCollective:
        """Open the segment that another rank has made; parameters as those of `create`.

        Raises
        ------
        ConfigurationError
            If there is no such segment, or it was made for another group or by another version of this package.
        """
        ranks = _checked(ranks, index)
        segment = Segment.attach(name)
        if len(segment.buffer) >= _HEADER.itemsize:
            header: Any = array_on(segment.buffer, (), _HEADER)
            found = tuple(header[field].item() for field in ("magic", "version", "size", "ranks", "buffers"))
            known = found == (MAGIC, VERSION, len(ranks), _fingerprint(ranks), BUFFERS)
            if known and len(segment.buffer) == Memory.size_bytes(len(ranks), header["chunk_bytes"].item()):
                return cls._opened(segment, ranks, index, liveness, False, fused)
            del header
        segment.close()
        raise ConfigurationError(
            f"the shared memory {name} was not made for a group of the ranks {ranks} by this version of this package; "
            "run the same script and the same installation on every worker"
        )

    @classmethod
    def _opened(
        cls, segment: Segment, ranks: tuple[int, ...], index: int, liveness: Liveness, owner: bool, fused: bool | None
    ) -> HostCollective:
        try:
            return cls(segment, ranks, index, liveness, owner, fused)
        except BaseException:
            segment.close()
            if owner:
                Segment.unlink(segment.name)
            raise

    def all_reduce(self, array: Array, op: str = "sum", out: Array | None = None, *, timeout_s: float) -> Array:
        """See `Collective.all_reduce`. Floats are combined in the order of the ranks, float16 in float32."""
        return self._combine("all_reduce", op, array, out, timeout_s)

    def broadcast(self, array: Array, root: int = 0, *, timeout_s: float) -> Array:
        """See `Collective.broadcast`."""
        try:
            header = self._headline("broadcast", "sum", canonical_root(root, self.size), array, timeout_s)
            require_writable(array, "array")
            plain = _plain(array)
        except BaseException as exc:
            self.refuse(exc)
            raise
        self._call(header, plain, plain, timeout_s)
        if plain is not array and root != self.rank:
            array[...] = plain.reshape(array.shape)
        return array

    def all_gather(self, array: Array, out: Array | None = None, *, timeout_s: float) -> Array:
        """See `Collective.all_gather`."""
        return self._combine("all_gather", "sum", array, out, timeout_s)

    def reduce_scatter(self, array: Array, op: str = "sum", out: Array | None = None, *, timeout_s: float) -> Array:
        """See `Collective.reduce_scatter`; combined as by `all_reduce`."""
        return self._combine("reduce_scatter", op, array, out, timeout_s)

    def barrier(self, *, timeout_s: float) -> None:
        """See `Collective.barrier`."""
        try:
            header = self._headline("barrier", "sum", 0, _NOTHING, timeout_s)
        except BaseException as exc:
            self.refuse(exc)
            raise
        self._call(header, _NOTHING, _NOTHING, timeout_s)

    def refuse(self, exc: BaseException) -> None:
        """Break the group, unless it is of one: this rank does not make a call, and tells the others why."""
        if self.size == 1:
            return
        self._refused = exc
        if self._busy.acquire(blocking=False):  # or else the next call of this rank tells them
            try:
                self._give_up(exc, self._refusal(exc))
            finally:
                self._busy.release()

    def _refusal(self, exc: BaseException) -> str:
        return (
            f"rank {self._ranks[self.rank]} refused its collective call {self._exchange.calls + 1}, and no other may "
            f"take its place: {exc if isinstance(exc, PlatoonError) else repr(exc)}"
        )

    def unlink(self) -> None:
        """Remove the segment's name, once all ranks are attached: then nothing can be left behind, whoever dies."""
        if self._owner:
            self._owner = False
            Segment.unlink(self.name)

    def close(self) -> None:
        """See `Collective.close`; a call that still waits ends with an error.

        That of another thread ends first. One that this thread is in, whose signal handler this is called from, ends
        as soon as the handler has returned.
        """
        self._closing = True
        memory = self._memory
        if memory is not None:
            memory.counters[self.rank, LEFT] = 1
        if self._busy.acquire(timeout=_CLOSE_S):
            try:
                if self._inside:
                    self._give_up(exc := self._closed_meanwhile(), str(exc))  # now: the handler may end the process
                else:
                    self._release()
            finally:
                self._busy.release()
        self.unlink()

    def _release(self) -> None:
        """Let go of the memory; the caller has the lock."""
        if self._memory is not None:
            self._memory, self._exchange = None, _Closed()
            self._segment.close()

    def _headline(self, kind: str, op: str, root: int, array: Array, timeout_s: float) -> Array:
        """Check arguments, and return the description that tells calls apart, which is kept for the next time."""
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
            elements = array.size
            if kind == "reduce_scatter":
                if not array.shape or array.shape[0] != self.size:
                    raise ConfigurationError(
                        f"got shape {array.shape}: the first axis must be the number of ranks, {self.size}"
                    )
                elements //= self.size
            header = headline(kind, name, root, array, elements)
            if len(self._headlines) < _HEADLINES:
                self._headlines[key] = header
        return header

    def _combine(self, kind: str, op: str, array: Array, out: Array | None, timeout_s: float) -> Array:
        """Make a call whose result goes to ``out``, through plain memory where that is not."""
        try:
            header = self._headline(kind, op, 0, array, timeout_s)
            shape = array.shape
            if kind != "all_reduce":
                shape = (self.size, *shape) if kind == "all_gather" else shape[1:]
            if out is None:
                result = out = np.empty(shape, array.dtype)
            else:
                require_out(out, array, shape, in_place=kind == "all_reduce")
                result = out if out.flags.carray else np.empty(shape, array.dtype)
            plain = _plain(array)
        except BaseException as exc:
            self.refuse(exc)
            raise
        self._call(header, plain, result, timeout_s)
        if result is not out:
            out[...] = result
        return out

    def _call(self, header: Array, array: Array, out: Array, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if not self._busy.acquire(blocking=False):
            self._refuse_second()
        if self._inside:
            self._busy.release()
            self._refuse_second()
        try:
            self._inside = True
            if self._refused is not None:
                self._give_up(self._refused, self._refusal(self._refused))
            status = self._exchange.begin(header, array, out, min(_PATIENCE_S, timeout_s))
            if status != ENDED:
                self._insist(status, header, deadline, timeout_s)
        except BaseException as exc:
            text = str(exc) if isinstance(exc, PlatoonError) else f"{self._what(header)} ended with {exc!r}"
            self._give_up(exc, text)
            raise
        finally:
            self._inside = False
            if self._closing:
                self._release()
            self._busy.release()

    def _refuse_second(self) -> NoReturn:
        exc = ConfigurationError(
            "got a call while another thread is in one, or this thread, whose signal handler makes another: the ranks "
            "could not tell them apart; use one group a thread"
        )
        self.refuse(exc)
        raise exc

    def _insist(self, status: int, header: Array, deadline: float, timeout_s: float) -> None:
        """Go on with a call that did not end at once, until it ends or somebody it needs will not come."""
        patience = _PATIENCE_S
        while status == AGAIN:
            patience = min(2 * patience, _LONGEST_PATIENCE_S)
            self._look_after(header, deadline, timeout_s)
            status = self._exchange.resume(min(patience, max(deadline - time.monotonic(), 0.0)))
        if status == BROKEN:
            raise self._reason()
        if status != ENDED:
            raise ConfigurationError(self._mismatch())

    def _look_after(self, header: Array, deadline: float, timeout_s: float) -> None:
        """Raise if there is no sense in waiting longer."""
        memory = self._open_memory()
        if self._closing:
            raise self._closed_meanwhile()
        left = [q for q in range(self.size) if memory.counters[q, LEFT]]
        missing = self._exchange.missing()
        if not missing:
            return
        ranks = [self._ranks[q] for q in missing]
        why = self._liveness.why_absent(ranks)
        if not why and set(left) & set(missing):
            who = _listed(self._ranks[q] for q in left if q in missing)
            why = f"{who} closed the collective and will not come"
        # Who came after all, before it went, is not missed.
        if why and set(missing) & set(self._exchange.missing()):
            raise WorkerLostError(f"{self._what(header)} cannot end: {why}")
        if time.monotonic() >= deadline:
            raise CollectiveTimeoutError(
                f"{self._what(header)} waited {timeout_s:g} s for {_listed(ranks)}: does every rank make the same "
                "calls in the same order? Look into their logs, or give a longer timeout_s"
            )

    def _closed_meanwhile(self) -> WorkerLostError:
        return WorkerLostError(
            f"collective call {self._exchange.calls} of rank {self._ranks[self.rank]} cannot end: another thread or a "
            "signal handler of that rank closed this collective meanwhile; close it after the last call"
        )

    def _what(self, header: Array) -> str:
        return f"collective call {self._exchange.calls} of rank {self._ranks[self.rank]}, {describe(header)},"

    def _mismatch(self) -> str:
        memory, call = self._open_memory(), self._exchange.calls
        did = [
            f"rank {self._ranks[q]} called {describe(memory.headers[q, (call - 1) & 1])}"
            for q in range(self.size)
            if memory.counters[q, ARRIVED] >= call
        ]
        return (
            f"the ranks differ in collective call {call}: {'; '.join(did)}. Every rank must make the same calls in the "
            "same order, with arrays of the same shape and dtype"
        )

    def _give_up(self, exc: BaseException, text: str) -> None:
        """Break the group, so that nobody waits for this rank, and leave a text that tells why."""
        memory = self._memory
        if memory is None:
            return
        how = _DIFFERED if isinstance(exc, ConfigurationError) else _FAILED
        deadline = time.monotonic() + _LOCK_S
        while not memory.broken:  # or another rank breaks it at this moment
            try:
                if self._segment.try_lock(_LOCK_BYTE):
                    if not memory.broken:
                        raw = to_bytes(text, _REASON_BYTES - 1)
                        self._segment.buffer[_REASON : _REASON + len(raw) + 1] = raw + b"\0"
                        memory.broken = how
                elif time.monotonic() >= deadline:
                    memory.broken = how
                else:
                    time.sleep(1e-3)
            finally:  # also if Ctrl-C comes before it is known whether the lock was free
                self._segment.unlock(_LOCK_BYTE)

    def _reason(self) -> PlatoonError:
        """Return the error for a group that is broken already."""
        raw = bytes(self._segment.buffer[_REASON : _REASON + _REASON_BYTES])
        text = raw.partition(b"\0")[0].decode(errors="replace") or "its reason could not be told; look into the logs"
        if self._open_memory().broken == _DIFFERED:
            return ConfigurationError(text)
        return WorkerLostError(
            f"the collective of {_listed(self._ranks)} is broken since a call of one of them failed: {text}"
        )

    def _open_memory(self) -> Memory:
        if self._memory is None:
            _refuse_closed()
        return self._memory


class _Closed:
    """The exchange of a collective that was closed."""

    calls = 0

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        _refuse_closed()

    def resume(self, patience_s: float) -> int:
        _refuse_closed()

    def missing(self) -> list[int]:
        return []


def _refuse_closed() -> NoReturn:
    raise ConfigurationError("got a call after close(): make a new group")


def _exchange(memory: Memory, rank: int, direct_bytes: int, fused: bool | None) -> Exchange:
    if HAVE_FUSED if fused is None else fused:
        return FusedExchange(memory, rank, direct_bytes)
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
        raise ConfigurationError(f"got index={index}: the group has the places 0 .. {len(ranks) - 1}")
    return ranks


def _fingerprint(ranks: tuple[int, ...]) -> int:
    return zlib.crc32(repr(ranks).encode())


def _listed(ranks: Iterable[int]) -> str:
    listed = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(listed) > 1)} {', '.join(listed)}"


def _plain(array: Array) -> Array:
    """Return the array itself if C can read it as it is, or else a copy."""
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")
