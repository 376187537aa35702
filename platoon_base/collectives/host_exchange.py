"""Exchange arrays between processes through shared memory. The caller handles deadlines and errors.

One rank creates the memory, the others open it. It holds a common page, a `LINE` for each rank, and
slots. A call consists of steps of at most one slot. In a step a rank may *put* values into its
slot, *combine* its own part after all ranks have put, and *take* the parts that the others
combined. Counters, which only grow, announce each of these. The C extension and NumPy do the same
in the same order, so ranks of one group may use either.
"""

from __future__ import annotations

import functools
import platform
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NoReturn

import numpy as np

from platoon_base.collectives.base import OPS
from platoon_base.dtypes import COLLECTIVE, Array, sum_dtype
from platoon_base.errors import ConfigurationError
from platoon_base.shm.schema import PAGE, Part, Schema, Views, Word
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.imports import extension

# NumPy is many times slower.
_collectives: Any = extension("_collectives")

KINDS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "barrier",
)  # _collectives.c and hosts_exchange.py use the same order.
COMPRESSED = 1  # The root of an all-reduce with data that are compressed between hosts.
ENDED, AGAIN, BROKEN, MISMATCH = range(4)
# The counters of a rank: calls begun; steps put, combined and finished. LEFT is 1 after `close`.
ARRIVED, PUT, COMBINED, DONE, LEFT = range(5)

BUFFERS = 4  # Slots per rank.
COMBINE_LAG, TAKE_LAG = 1, 2  # Steps; _collectives.c has the same values.
_DIMENSIONS = 6  # Limit of a header; its last dimension is the product of all further ones.
# This bit in the byte with the number of dimensions marks the header of a part, see `part_of`.
_PART = 128
_POLL_INTERVAL_S = 5e-5

CHUNK_BYTES = 1 << 18
DIRECT_BYTES = 1 << 13  # Up to this size it is faster if every rank combines the whole.
REASON_BYTES = 3072

# `struct board`, from byte 64, `struct line`, and the first words of `struct state` in _collectives.c.
STATE = ("segment", "rank", "size", "chunk", "buffers", "direct", "roomy_spins", "crowded_spins", "lines", "slots",
         "call", "step", "waiting_for", "until")  # fmt: skip
_CALL, _WAITING_FOR, _UNTIL = map(STATE.index, ("call", "waiting_for", "until"))
_STATE_WORDS = 40  # At least those of `struct state`.
_BOARD_AT = 64
BOARD = np.dtype({"names": ["broken", "bell", "sleepers"], "formats": ["i8", "u4", "i8"], "offsets": [0, 64, 128]})
# Five counters, a bit per core that the rank may use, the headers of its last two calls.
LINE = np.dtype([("counters", "i8", (5,)), ("cores", "u8", (11,)), ("headers", "i8", (2, 8))])


def _parts(header: Any, layout: Any) -> Iterator[Part]:
    size = int(header["size"])
    yield Part("board", BOARD, (), _BOARD_AT)
    yield Part("reason", f"S{REASON_BYTES}")
    yield Part("lines", LINE, (size,), PAGE)
    yield Part("slots", "u1", (size, BUFFERS, int(header["chunk_bytes"])), PAGE)


_GROUP = Schema(
    "the memory of a group",
    b"PLTNCLTV",
    2,
    [("chunk_bytes", "u8"), ("direct_bytes", "u8"), ("size", "u4"), ("ranks", "u4")],
    _parts,
    ConfigurationError,
)

HAVE_FUSED = _collectives is not None
OFFSETS: dict[str, int] = getattr(_collectives, "OFFSETS", {})  # As the C extension has them.
# NumPy has no memory barriers. It stores data before the counter that announces them, and loads in
# the opposite order, each counter in one access. This suffices on processors that reorder neither
# stores with stores nor loads with loads, such as x86.
HAVE_NUMPY = platform.machine() in ("x86_64", "AMD64", "i686")


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


class Memory:
    """Views of a group's shared memory. A slot has ``chunk_bytes``, a multiple of 4096."""

    broken = Word("broken")  # Nonzero after a call of some rank has failed; this ends every wait.

    def __init__(self, views: Views) -> None:
        lines, self.slots, self.reason, self._header = views.lines, views.slots, views.reason, views.board
        self.size, self.chunk_bytes = len(lines), self.slots.shape[2]
        self.start: int = views.header.ctypes.data
        self.at = views.at
        self.counters, self.cores, self.headers = lines["counters"], lines["cores"], lines["headers"]

    def set_cores(self, rank: int, cores: Iterable[int]) -> None:
        for core in cores:
            if core < 64 * self.cores.shape[1]:
                self.cores[rank, core // 64] |= np.uint64(1 << core % 64)


class GroupSegment:
    """The open shared memory of one group."""

    def __init__(self, views: Views, ranks: tuple[int, ...], owner: bool) -> None:
        self.segment, self.ranks = views.segment, ranks
        self.memory: Memory | None = Memory(views)
        self.direct_bytes = int(views.header["direct_bytes"])
        self._owner = owner

    @classmethod
    def create(cls, name: Name, ranks: tuple[int, ...], chunk_bytes: int) -> GroupSegment:
        if chunk_bytes < 4096 or chunk_bytes % 4096 or chunk_bytes // len(ranks) < 64:
            raise ConfigurationError(
                f"got chunk_bytes={chunk_bytes}: it must be a multiple of 4096, and at least 64 per rank"
            )
        # Two ranks move as much memory either way, but combining the whole takes one wait per step instead of two.
        direct_bytes = DIRECT_BYTES if len(ranks) > 2 else 2**62
        views = _GROUP.create(name, chunk_bytes=chunk_bytes, direct_bytes=direct_bytes, **_members(ranks))
        return cls(views, ranks, owner=True)

    @classmethod
    def attach(cls, name: Name, ranks: tuple[int, ...]) -> GroupSegment:
        return cls(_GROUP.attach(name, **_members(ranks)), ranks, owner=False)

    @property
    def open_memory(self) -> Memory:
        """The memory; raises `ConfigurationError` after `close`."""
        if self.memory is None:
            refuse_closed()
        return self.memory

    def unlink(self) -> None:
        """Remove the segment's name if this rank created it; a second call does nothing."""
        if self._owner:
            self._owner = False
            Segment.unlink(self.segment.name)

    def close(self) -> None:
        self.memory = None
        self.segment.close()


def refuse_closed() -> NoReturn:
    raise ConfigurationError("got a call after close(): make a new group")


def _members(ranks: tuple[int, ...]) -> dict[str, Any]:
    return {"size": len(ranks), "ranks": zlib.crc32(repr(ranks).encode())}


class Exchange:
    """The exchange of arrays between one rank and the others of its group; this one is closed."""

    calls = 0

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        """Begin a call on contiguous arrays, with its `headline`; continue as `resume` does."""
        refuse_closed()

    def resume(self, patience_s: float) -> int:
        """Continue the call; return its status, or AGAIN after ``patience_s`` without progress."""
        refuse_closed()

    def missing(self) -> list[int]:
        """List the ranks that the call waits for."""
        return []

    def left(self) -> list[int]:
        return []

    def leave(self) -> None:
        """Report to the others that this rank has closed the group."""

    def called(self) -> dict[int, Array]:
        """Return the `headline` of the latest call, for each rank that has begun it."""
        return {}

    def broken_link(self) -> str:
        """Return why the call cannot end although no rank is absent; empty if unknown."""
        return ""

    def unanswered(self) -> str:
        """Describe the hosts that acknowledge nothing; empty if there are none."""
        return ""

    def report(self, how: int, text: str) -> None:
        """Report to other hosts how and why this rank has broken the group."""

    def close(self) -> None:
        """Release what the exchange owns."""


def headline(kind: str, op: str, root: int, array: Array, elements: int) -> Array:
    """Describe a call in eight words, which are equal on all ranks if their calls match."""
    header = np.zeros(8, np.int64)
    dtype = COLLECTIVE.index(array.dtype.name)
    header[0] = KINDS.index(kind) | OPS.index(op) << 8 | dtype << 16 | min(array.ndim, 127) << 24 | root << 32
    header[1] = elements
    shape = array.shape
    if array.ndim > _DIMENSIONS:
        shape = (*shape[: _DIMENSIONS - 1], int(np.prod(shape[_DIMENSIONS - 1 :])))
    header[2 : 2 + len(shape)] = shape
    return header


def part_of(outer: Array, kind: str, op: str, dtype: str, elements: int, root: int = 0) -> Array:
    """Return the `headline` of a call on one host that is part of the call ``outer`` over hosts."""
    header = np.zeros(8, np.int64)
    header[0] = KINDS.index(kind) | OPS.index(op) << 8 | COLLECTIVE.index(dtype) << 16 | _PART << 24 | root << 32
    header[1] = elements
    header[2] = outer[0]
    header[3:8] = outer[2:7]
    if outer[0] >> 24 & 127 >= _DIMENSIONS:
        header[7] *= outer[7]
    return header


def describe(header: Array) -> str:
    word, dims = int(header[0]), header[2:]
    if word >> 24 & _PART:
        word, dims = int(header[2]), header[3:]
    kind, op, dtype = KINDS[word & 255], OPS[word >> 8 & 255], COLLECTIVE[word >> 16 & 255]
    ndim, root = word >> 24 & 255, word >> 32
    if kind == "barrier":
        return "barrier()"
    shape = tuple(int(n) for n in dims[: min(ndim, _DIMENSIONS)])
    detail = {"broadcast": f", root={root}", "all_gather": ""}.get(kind, f", {op!r}")
    compressed = ", compressed between hosts" * (kind == "all_reduce" and root == COMPRESSED)
    return f"{kind}({dtype} of shape {shape}{detail}{compressed})"


class _InMemory(Exchange):
    _memory: Memory
    _rank: int

    def left(self) -> list[int]:
        return [q for q in range(self._memory.size) if self._memory.counters[q, LEFT]]

    def leave(self) -> None:
        self._memory.counters[self._rank, LEFT] = 1

    def called(self) -> dict[int, Array]:
        memory, calls = self._memory, self.calls
        return {
            q: memory.headers[q, (calls - 1) & 1] for q in range(memory.size) if memory.counters[q, ARRIVED] >= calls
        }


class FusedExchange(_InMemory):
    """The exchange in C.

    In all-reduces of up to ``direct_bytes``, which is the same on all ranks, every rank combines
    the whole arrays; larger ones are split. A wait polls ``roomy_spins`` times before it yields the
    core if there is a core for each rank, otherwise ``crowded_spins`` times.
    """

    def __init__(
        self, memory: Memory, rank: int, direct_bytes: int, roomy_spins: int = 2000, crowded_spins: int = 50
    ) -> None:
        self._memory = memory
        self._state = np.zeros(_STATE_WORDS, np.int64)
        sizes = (rank, memory.size, memory.chunk_bytes, BUFFERS, direct_bytes)
        fixed = (memory.start, *sizes, roomy_spins, crowded_spins, memory.at["lines"], memory.at["slots"])
        self._state[: len(fixed)] = fixed
        self._address = self._state.ctypes.data
        self._rank = rank
        self._run: Callable[[int, Any, Any, Any, float], int] = _collectives.run

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        return self._run(self._address, header, array, out, patience_s)

    def resume(self, patience_s: float) -> int:
        return self._run(self._address, None, None, None, patience_s)

    @property
    def calls(self) -> int:  # type: ignore[override]
        return int(self._state[_CALL])

    def missing(self) -> list[int]:
        return _missing(self._memory, self._rank, int(self._state[_WAITING_FOR]), int(self._state[_UNTIL]))


def _missing(memory: Memory, rank: int, counter: int, value: int) -> list[int]:
    return [q for q in range(memory.size) if q != rank and memory.counters[q, counter] < value]


class NumpyExchange(_InMemory):
    """The exchange in NumPy, which polls and copies more; it needs `HAVE_NUMPY`."""

    def __init__(self, memory: Memory, rank: int, direct_bytes: int) -> None:
        self._memory = memory
        self._rank = rank
        self._direct_bytes = direct_bytes
        self._own = memory.counters[rank]
        self._waiting_for = (ARRIVED, 0)
        self._running: Iterator[int] = iter(())
        self._step = 0
        self.calls = 0

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        if self._memory.broken:
            return BROKEN
        self._running = self._call(header, array.reshape(-1), out.reshape(-1))
        return self.resume(patience_s)

    def resume(self, patience_s: float) -> int:
        deadline = time.monotonic() + patience_s
        for status in self._running:
            if status != AGAIN:
                return status
            if self._memory.broken:
                return BROKEN
            if time.monotonic() > deadline:
                return AGAIN
            time.sleep(_POLL_INTERVAL_S)
        return ENDED

    def missing(self) -> list[int]:
        return _missing(self._memory, self._rank, *self._waiting_for)

    def _wait(self, counter: int, value: int) -> Iterator[int]:
        self._waiting_for = (counter, value)
        while self.missing():
            yield AGAIN

    def _call(self, header: Array, array: Array, out: Array) -> Iterator[int]:
        """Make one call and yield AGAIN while it waits; `advance` in C is its counterpart."""
        number = self.calls
        self._memory.headers[self._rank, number & 1] = header
        self.calls = number + 1
        self._own[ARRIVED] = self.calls
        yield from self._wait(ARRIVED, self.calls)
        if (self._memory.headers[:, number & 1] != header).any():
            yield MISMATCH
        work = _Work(self._memory, self._rank, self._step, header, array, out, self._direct_bytes)
        first = self._step + 1
        for turn in range(work.steps + (TAKE_LAG if work.split else COMBINE_LAG)):
            if turn < work.steps:
                yield from self._wait(DONE, first + turn - BUFFERS)
                work.put(turn)
                self._own[PUT] = first + turn
            combined, taken = turn - COMBINE_LAG, turn - TAKE_LAG
            if 0 <= combined < work.steps:
                yield from self._wait(PUT, first + combined)
                work.combine(combined)
                self._own[COMBINED if work.split else DONE] = first + combined
            if work.split and taken >= 0:
                yield from self._wait(COMBINED, first + taken)
                work.take(taken)
                self._own[DONE] = first + taken
        self._step += work.steps
        self._own[COMBINED] = self._step


class _Work:
    def __init__(
        self, memory: Memory, rank: int, step: int, header: Array, array: Array, out: Array, direct_bytes: int
    ) -> None:
        word, n = int(header[0]), int(header[1])
        self._kind, self._op, self._root = KINDS[word & 255], OPS[word >> 8 & 255], word >> 32
        self._memory, self._rank, self._step = memory, rank, step
        # There is one row per rank if the array or the result has a part for each rank.
        self._array = array.reshape(memory.size, n) if self._kind == "reduce_scatter" else array.reshape(1, n)
        self._out = out.reshape(memory.size, n) if self._kind == "all_gather" else out.reshape(-1)
        item, chunk = array.itemsize, memory.chunk_bytes
        most = (chunk // memory.size // 64 * 64 if self._kind == "reduce_scatter" else chunk) // item
        self.steps = 0 if self._kind == "barrier" else _ceil(n, most)
        self._width = min(most, _ceil(_ceil(n, self.steps), 64) * 64) if self.steps else 0
        self.split = self._kind == "all_reduce" and n * item > direct_bytes and memory.size > 1

    def _at(self, turn: int) -> slice:
        return slice(turn * self._width, min((turn + 1) * self._width, self._array.shape[1]))

    def _slot(self, rank: int, turn: int) -> Array:
        slots = self._memory.slots[rank, (self._step + turn) % BUFFERS]
        view: Array = slots.view(self._array.dtype)
        return view

    def _part(self, turn: int, rank: int) -> slice:
        """Return the elements of a step that a rank combines in a split all-reduce."""
        at = self._at(turn)
        count = at.stop - at.start
        each = _ceil(_ceil(count, self._memory.size), 64) * 64
        return slice(min(each * rank, count), min(each * (rank + 1), count))

    def put(self, turn: int) -> None:
        data, slot = self._array[:, self._at(turn)], self._slot(self._rank, turn)
        if self._kind == "reduce_scatter":
            for rank, part in enumerate(data):
                slot[rank * self._width :][: part.size] = part
        elif self.split:
            own = self._part(turn, self._rank)
            slot[: own.start] = data[0, : own.start]
            slot[own.stop : data.shape[1]] = data[0, own.stop :]
        elif self._kind != "broadcast" or self._rank == self._root:
            slot[: data.shape[1]] = data[0]

    def combine(self, turn: int) -> None:
        at = self._at(turn)
        count, ranks = at.stop - at.start, range(self._memory.size)
        slots = [self._slot(rank, turn) for rank in ranks]
        if self._kind == "broadcast":
            if self._rank != self._root:
                self._array[0, at] = slots[self._root][:count]
        elif self._kind == "all_gather":
            self._out[:, at] = [slot[:count] for slot in slots]
        elif self._kind == "reduce_scatter":
            first = self._rank * self._width
            self._out[at] = _combined(self._op, [slot[first : first + count] for slot in slots])
        else:
            part = self._part(turn, self._rank) if self.split else slice(0, count)
            sources = [slot[part] for slot in slots]
            sources[self._rank] = self._array[0, at][part]
            total = _combined(self._op, sources)
            self._out[at][part] = total
            if self.split:
                slots[self._rank][part] = total

    def take(self, turn: int) -> None:
        out = self._out[self._at(turn)]
        for rank in range(self._memory.size):
            if rank != self._rank:
                part = self._part(turn, rank)
                out[part] = self._slot(rank, turn)[part]


REDUCERS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "mean": np.add}


def _combined(op: str, sources: list[Array]) -> Array:
    """Combine in the order of the ranks; combine float16 in float32 and round once."""
    dtype = sources[0].dtype
    wide = sum_dtype(dtype)
    with np.errstate(all="ignore"):  # The C extension ignores them too.
        total: Array = functools.reduce(REDUCERS[op], [source.astype(wide, copy=False) for source in sources])
        if op == "mean" and dtype.kind == "f":
            total = total / wide.type(len(sources))
        elif op == "mean":
            total = toward_zero(total, len(sources))
        return total.astype(dtype)


def toward_zero(total: Array, size: int) -> Array:
    """Divide integers and round toward zero, as C does; return int64."""
    wide = total.astype(np.int64)
    quotient: Array = wide // size
    quotient += (wide < 0) & (quotient * size != wide)
    return quotient
