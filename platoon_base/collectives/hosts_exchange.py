"""The exchange of arrays over several hosts: in shared memory on each host, by links between hosts.

The n-th ranks of the hosts form lane n; there are as many lanes as the smallest host has ranks. A
large array is combined in shared memory, the rank of each lane combines its part with those of the
other hosts, and the parts are gathered in shared memory: all links are used at the same time, on
consecutive chunks. A small array is combined on each host, and the first ranks of the hosts
exchange it; a barrier works likewise. Ranks without a lane get results in shared memory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from platoon_base.collectives.base import OPS
from platoon_base.collectives.host_exchange import AGAIN, BROKEN, ENDED, MISMATCH, Exchange, Memory, part_of
from platoon_base.collectives.hosts_links import Link, Links, as_bytes
from platoon_base.collectives.hosts_parts import (
    CHUNK_BYTES,
    ChunkedAllGather,
    Chunks,
    Reduction,
    ReductionScratch,
    chunk_bounds,
    is_wide,
)
from platoon_base.dtypes import Array
from platoon_base.system.process import awake
from platoon_base.system.text import to_bytes

Steps = Generator[int, None, None]

# Up to this size the first rank of a host sends an array whole, in a single step.
SMALL_BYTES = 1 << 16
MAX_SMALL_BYTES = 1 << 18  # Limit on the bytes that it sends to all hosts together.
DEPTH = 4  # Chunks in flight.
NO_BYTES = np.zeros(0, np.uint8)
SPIN_S = 2e-4  # A wait polls for this time, yielding its core in between, before it sleeps.
KEPT = 1024  # Scripts repeat the same few calls.
_SLEEP_S = 0.02  # Interval of checks whether a rank of this host has failed.
# Interval of polls of the links while this rank waits in shared memory.
_LINK_POLL_INTERVAL_S = 2e-3
_ALIGN = 16  # Elements.


class _Plan(NamedTuple):
    """The cached plan of a small all-reduce."""

    # The address of the headline is the key of the cache, so the plan keeps the headline.
    header: Array
    part: Array  # Headline of the first call among the ranks of a host.
    then: Array  # Headline of the second.
    op: str


class HostsExchange(Exchange):
    """An exchange over hosts; ranks of the group are numbered host by host.

    A call is a generator that yields a status of `Exchange.resume` when it waits. ``local`` and
    ``memory`` belong to the ranks of this host, ``workers`` are the numbers of ranks on the hosts,
    and ``index`` is this rank's index on its host. A rank without a lane has no ``links``.
    """

    def __init__(
        self,
        local: Exchange,
        memory: Memory,
        workers: Sequence[int],
        host: int,
        index: int,
        links: Links,
    ) -> None:
        self._local, self._memory, self._links = local, memory, links
        self._workers, self._host, self._index = list(workers), host, index
        self._hosts, self._size, self._here = len(workers), sum(workers), workers[host]
        self._lanes = min(workers)
        self._firsts = [sum(workers[:h]) for h in range(len(workers))]
        parts = self._lanes * self._hosts
        # Lengths that are multiples of this have equal parts.
        self._unit = parts * max(1, min(_ALIGN, 4096 // parts))
        self._has_lane = index < self._lanes
        self._even = self._here == self._lanes
        self._running: Steps = iter(())  # type: ignore[assignment]
        self._until = 0.0
        self._within = True  # True while this rank waits for ranks of its host.
        self._owes: Callable[[Link], bool] = lambda link: False
        # The headline, until the ranks of this host have compared it.
        self._first: Array | None = None
        self._headers: dict[tuple[Any, ...], Array] = {}
        self._plans: dict[int, _Plan] = {}
        self._scratch = ReductionScratch(self._hosts)
        # Reduction of the next call; may be a compressed one.
        self.reduction: Callable[..., Reduction] = Reduction
        self.calls = 0
        self.busy = self._has_reported = False

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        if self._memory.broken:
            return BROKEN
        self.calls += 1
        self._first = header
        self._within = True
        self._links.begin(header)
        plan = self._plans.get(id(header)) or self._plan(header, array)
        if plan is not None:
            return self._begin_small(plan, array, out.reshape(-1), patience_s)
        word = int(header[0])
        steps = (self._all_reduce, self._broadcast, self._all_gather, self._reduce_scatter, self._barrier)[word & 255]
        self._running = steps(header, array.reshape(-1), out.reshape(-1), OPS[word >> 8 & 255], word >> 32)
        return self.resume(patience_s)

    def resume(self, patience_s: float) -> int:
        self._until = awake() + patience_s
        self.busy = True
        try:
            for status in self._running:
                return status
            return ENDED
        finally:
            self.busy = False

    def missing(self) -> list[int]:
        if self._within:
            here = [self._firsts[self._host] + q for q in self._local.missing()]
            if self._first is not None and not self.busy:
                self._links.report_wait(here)
            return here
        if not self.busy:
            self._links.pump()  # Finding the reason why a rank is absent may have taken long.
        found = {member for link in self._links.quiet(self._owes) for member in link.missing}
        return sorted(found)

    def left(self) -> list[int]:
        away = [link.to.member for link in self._links.all if link.left]
        return sorted(away + [self._firsts[self._host] + q for q in self._local.left()])

    def leave(self) -> None:
        self._local.leave()  # `close` notifies the links, when no call of another thread uses them.

    def called(self) -> dict[int, Array]:
        found = {self._firsts[self._host] + q: header for q, header in self._local.called().items()}
        if self._first is None:  # Otherwise the ranks of this host are still comparing their calls.
            found = {self._firsts[self._host] + self._index: np.frombuffer(self._links.header, np.int64)}
        for link in self._links.all:
            header = link.describe_head()
            if header is not None:
                found[link.to.member] = header
        return dict(sorted(found.items()))

    def broken_link(self) -> str:
        if self._within:
            return ""
        return self._links.broken(self._owes)

    def unanswered(self) -> str:
        return "" if self._within else self._links.unanswered()

    def report(self, how: int, text: str) -> None:
        if not (self._has_reported or self.busy):
            self._has_reported = True
            self._links.send_last_record(how, to_bytes(text, 3000))

    def close(self) -> None:
        if not self.busy:
            self._links.send_last_record(None, b"")
        self._links.close()

    # ---- Calls ----

    def _barrier(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        yield from self._inside("barrier", "sum", array, out)
        if self._index == 0:
            self._links.announce(b"")
            yield from self._heads()
        yield from self._inside("barrier", "sum", array, out)

    def _broadcast(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        host = max(h for h in range(self._hosts) if self._firsts[h] <= root)
        yield from self._spread({host: array.view(np.uint8)}, root - self._firsts[host])

    def _all_gather(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        starts = [first * len(array) for first in (*self._firsts, self._size)]
        blocks = {h: out[start:stop] for h, (start, stop) in enumerate(zip(starts, starts[1:]))}
        yield from self._inside("all_gather", "sum", array, blocks[self._host])
        yield from self._spread({h: block.view(np.uint8) for h, block in blocks.items()})

    def _spread(self, blocks: dict[int, Array], root: int | None = None) -> Steps:
        """Copy the blocks of hosts to all others. The host of the only block broadcasts it from ``root`` first."""
        unit, is_small = self._lanes * 64, sum(map(len, blocks.values())) <= SMALL_BYTES
        ends = {h: 0 if is_small else len(block) // unit * unit for h, block in blocks.items()}
        # The rests are sent in the heads of the call.
        rests = {h: block[ends[h] :] for h, block in blocks.items()}
        own, sends = rests.get(self._host, NO_BYTES), self._host in blocks
        if root is not None:
            yield from self._inside("broadcast" if sends else "barrier", "sum", own, own, root if sends else 0)
        bodies = {h: block[: ends[h]] for h, block in blocks.items()}
        spread = ChunkedAllGather(self._links, self._host, self._lanes, self._index, bodies, CHUNK_BYTES)
        if self._has_lane:
            self._links.work = spread
            self._links.announce(as_bytes(own))
            for chunk in range(spread.count if root is None else 0):
                spread.send(chunk)
        for chunk in range(spread.count):
            for h, whole, part in spread.chunk(chunk):
                if h != self._host:
                    if self._has_lane:
                        has = functools.partial(spread.has, h, chunk)
                        yield from self._wait(has, lambda link: spread.owes(link.to.host))
                    yield from self._from_links(whole, part if self._even and self._lanes > 1 else None)
                elif root is not None:
                    yield from self._inside("broadcast", "sum", whole, whole, root)
                    if self._has_lane:
                        spread.send(chunk)
        yield from self._heads()
        self._links.work = None
        for link in self._links.all:
            if len(rests.get(link.to.host, NO_BYTES)):
                rests[link.to.host][...] = np.frombuffer(link.payload, np.uint8)
        for h, rest in rests.items():
            if h != self._host and len(rest) and not self._even:
                yield from self._inside("broadcast", "sum", rest, rest)

    # ---- Calls that combine ----

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= SMALL_BYTES and size_bytes * (self._hosts - 1) <= MAX_SMALL_BYTES

    def _small(self, array: Array, out: Array, op: str) -> Steps:
        """Combine a small array on each host, then between the first ranks; broadcast it."""
        yield from self._inside("all_reduce", "sum" if op == "mean" else op, array, out)
        yield from self._rest_of_small(ENDED, 0, op, out)

    def _combine_heads(self, out: Array, op: str) -> None:
        """Combine this host's array, in ``out``, with those in the heads of all other hosts."""
        heads = {link.to.host: link.payload for link in self._links.all}
        self._scratch.combine(op, heads, self._host, self._size, out)

    def _all_reduce(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        if is_wide(array.dtype, op):
            wide = array.astype(np.float32)
            yield from self._reduced(wide, wide, op)
            with np.errstate(all="ignore"):
                out[...] = wide
        else:
            yield from self._reduced(array, out, op)

    def _reduced(self, array: Array, out: Array, op: str) -> Steps:
        if self._is_small(array.nbytes):
            yield from self._small(array, out, op)
            return
        inner = "sum" if op == "mean" else op
        body = len(array) // self._unit * self._unit
        rest = out[body:]
        yield from self._inside("all_reduce", inner, array[body:], rest)
        if self._has_lane:
            self._links.announce(as_bytes(rest))
        if body:
            yield from self._chunks(array[:body], out[:body], op, inner)
        yield from self._heads()
        if len(rest) and self._has_lane:
            self._combine_heads(rest, op)
        if not self._even and len(rest):
            yield from self._inside("broadcast", "sum", rest, rest)

    def _chunks(self, array: Array, out: Array, op: str, inner: str) -> Steps:
        """Combine a large array; its length is a multiple of lanes times hosts."""
        lanes, hosts, item = self._lanes, self._hosts, array.itemsize
        bounds = chunk_bounds(len(array), item, self._unit)
        count, depth, width = len(bounds), min(DEPTH, len(bounds)), bounds[0][1]
        reduction = None
        if self._has_lane:
            widths = [(stop - start) // lanes // hosts for start, stop in bounds]
            links, size = self._links, self._size
            reduction = self.reduction(links, self._host, hosts, size, op, array.dtype, Chunks(widths, depth))
            links.work = reduction
        parts = [np.empty(width // lanes, array.dtype) for _ in range(depth)] if self._even and lanes > 1 else []
        for turn in range(count + depth - 1):
            if turn < count:
                start, stop = bounds[turn]
                yield from self._to_links(turn, array[start:stop], out[start:stop], parts, inner, reduction)
            ready = turn - depth + 1
            if ready >= 0:
                start, stop = bounds[ready]
                if reduction is not None:
                    yield from self._wait(lambda: reduction.ended(ready), _owes_data(reduction))  # noqa: B023
                    reduction.forget(ready)
                yield from self._from_links(out[start:stop], parts[ready % depth] if parts else None)
        self._links.work = None

    def _to_links(
        self, chunk: int, array: Array, out: Array, parts: list[Array], inner: str, reduction: Reduction | None
    ) -> Steps:
        """Combine a chunk on this host, and begin to exchange this lane's part."""
        each = len(array) // self._lanes
        source = target = out[self._index * each :][:each]
        if parts:
            source = target = parts[chunk % len(parts)][:each]
            yield from self._inside("reduce_scatter", inner, array, target)
        elif self._here == 1:
            source = array
        else:
            yield from self._inside("all_reduce", inner, array, out)
        if reduction is not None:
            reduction.begin(chunk, source, target)
            self._links.pump()

    def _from_links(self, out: Array, part: Array | None) -> Steps:
        """Gather the parts of a completed chunk for all ranks of this host."""
        each = len(out) // self._lanes
        if part is not None:
            yield from self._inside("all_gather", "sum", part[:each], out)
        elif not self._even:
            for lane in range(self._lanes):
                piece = out[lane * each :][:each]
                yield from self._inside("broadcast", "sum", piece, piece, lane)

    def _reduce_scatter(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        whole = np.empty_like(array)
        yield from self._all_reduce(header, array, whole, op, root)
        own = self._firsts[self._host] + self._index
        out[...] = whole[own * len(out) :][: len(out)]

    # ---- Small all-reduces ----

    def _plan(self, header: Array, array: Array) -> _Plan | None:
        """Return the cached plan of a small all-reduce for a headline; None for other calls."""
        word, dtype = int(header[0]), array.dtype
        op = OPS[word >> 8 & 255]
        if word & 255 or is_wide(dtype, op) or not self._is_small(array.nbytes):
            return None
        part = part_of(header, "all_reduce", "sum" if op == "mean" else op, dtype.name, array.size)
        then = part_of(np.zeros(8, np.int64), "broadcast", "sum", dtype.name, array.size)
        plan = _Plan(header, part, then, op)
        if len(self._plans) < KEPT:
            self._plans[id(header)] = plan
        return plan

    def _begin_small(self, plan: _Plan, array: Array, out: Array, patience_s: float) -> int:
        """Begin a small all-reduce: as `_small`, but faster if no rank is late."""
        self.busy = True
        try:
            status, stage = self._local.begin(plan.part, array, out, patience_s), 0
            if status == ENDED:
                self._first = None
                if self._index == 0:
                    status = self._exchange_small(plan, out)
                if status == ENDED and self._here > 1:
                    self._within = True
                    status, stage = self._local.begin(plan.then, out, out, patience_s), 2
                elif status != ENDED:
                    stage = 1
        finally:
            self.busy = False
        if status == ENDED:
            return ENDED
        self._running = self._rest_of_small(status, stage, plan.op, out)
        return self.resume(patience_s)

    def _exchange_small(self, plan: _Plan, out: Array) -> int:
        """Exchange a small array with the other hosts; return AGAIN if one is late."""
        self._within, self._owes, links = False, Link.owes_head, self._links
        links.announce(as_bytes(out))
        until = awake() + SPIN_S
        while not links.agree():
            if not links.pump(1):
                if awake() > until:
                    return AGAIN
                os.sched_yield()
        if not links.sent():
            return AGAIN
        self._combine_heads(out, plan.op)
        return ENDED

    def _rest_of_small(self, status: int, stage: int, op: str, out: Array) -> Steps:
        """Continue a small all-reduce at a stage: 0 on this host, 1 between hosts, 2 broadcast."""
        if stage == 0:
            yield from self._go_on(status)
        if self._index == 0 and stage < 2:
            if stage == 0:
                self._links.announce(as_bytes(out))
            yield from self._heads()
            self._combine_heads(out, op)
        yield from self._go_on(status) if stage == 2 else self._inside("broadcast", "sum", out, out)

    # ---- Waits for the ranks of this host and for the links ----

    def _inside(self, kind: str, op: str, array: Array, out: Array, root: int = 0) -> Steps:
        elements = len(array) // self._here if kind == "reduce_scatter" else len(array)
        if self._first is not None:
            header = part_of(self._first, kind, op, array.dtype.name, elements, root)
        elif self._here == 1:
            if out is not array and kind != "barrier":
                out[...] = array
            return
        else:
            key = kind, op, array.dtype, elements, root
            known = self._headers.get(key)
            if known is None:
                known = part_of(np.zeros(8, np.int64), kind, op, array.dtype.name, elements, root)
                if len(self._headers) < KEPT:
                    self._headers[key] = known
            header = known
        self._within = True
        yield from self._go_on(self._local.begin(header, array, out, self._patience()))

    def _go_on(self, status: int) -> Steps:
        while status != ENDED:
            if status != AGAIN:
                yield status
            self._links.pump()
            if self._memory.broken:
                yield BROKEN
            if awake() >= self._until:
                yield AGAIN
            status = self._local.resume(self._patience())
        self._first = None

    def _patience(self) -> float:
        left_s = max(self._until - awake(), 0.0)
        return min(left_s, _LINK_POLL_INTERVAL_S) if self._links.work is not None or not self._links.sent() else left_s

    def _wait(self, done: Callable[[], bool], owes: Callable[[Link], bool]) -> Steps:
        """Wait for the links until ``done()``; ``owes(link)`` says whether a link owes data."""
        self._within = False
        self._owes = owes
        links, since = self._links, 0.0
        spin_s = SPIN_S if links.work is None else 0.0  # Large data take longer than spinning.
        while not done():
            moved = links.pump()
            if links.differ():
                yield MISMATCH
            if self._memory.broken and not done():
                yield BROKEN
            now = awake()
            if now >= self._until:
                yield AGAIN  # Return even while data arrive: another thread may close the group.
            elif moved:
                since = 0.0
            else:
                since = since or now
                if now - since < spin_s:
                    os.sched_yield()
                else:
                    links.wait(min(self._until - now, _SLEEP_S))
        if links.differ():
            yield MISMATCH

    def _heads(self) -> Steps:
        """Wait until the counterparts have begun this call and all posted data are sent."""
        if self._has_lane:
            links = self._links
            yield from self._wait(lambda: links.heads() and links.sent(), Link.owes_head)


def _owes_data(reduction: Reduction) -> Callable[[Link], bool]:
    return lambda link: link.owes_head() or reduction.owes(link.to.host)
