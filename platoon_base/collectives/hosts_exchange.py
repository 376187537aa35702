"""How one rank of a group over several hosts exchanges arrays: in shared memory on its host, by links between hosts.

A host's first ranks, as many as the host with the fewest ranks has, have a link each to their counterparts on all other
hosts: the rails. A large array is combined in shared memory, each rail's rank combines its part with those of the other
hosts, and the parts are gathered in shared memory; so all links work at the same time, on chunks that follow each
other. A small array is combined on each host, and its first rank exchanges it with those of the other hosts, as a
barrier does. Where a host has more ranks than rails, the ranks without one get the result from those that have one.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from platoon_base.collectives.base import OPS
from platoon_base.collectives.host_exchange import AGAIN, BROKEN, ENDED, part_of
from platoon_base.collectives.host_spread import Spread
from platoon_base.collectives.hosts_links import as_bytes
from platoon_base.collectives.hosts_reducing import CHUNK_BYTES, NO_BYTES, SMALL_BYTES, HostsReducing, is_wide
from platoon_base.collectives.hosts_waits import KEPT, SPIN_S, Steps, owes_head

__all__ = ["HostsExchange"]

Array = np.ndarray[Any, Any]


class _Plan(NamedTuple):
    """Holds what is known of a small all-reduce; its headline is kept because it is known by its place in memory."""

    header: Array
    part: Array  # the headline of its first call among the ranks of a host
    then: Array  # and of the second
    op: str


class HostsExchange(HostsReducing):
    """See `Exchange`; indices are those of the group of all hosts, in which ranks are numbered host by host.

    Parameters are those of `HostsWaits`.
    """

    _plans: dict[int, _Plan]

    def begin(self, header: Array, array: Array, out: Array, patience_s: float) -> int:
        """See `Exchange.begin`."""
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
        """See `Exchange.resume`."""
        self._until = time.monotonic() + patience_s
        self.busy = True
        try:
            for status in self._running:
                return status
            return ENDED
        finally:
            self.busy = False

    def missing(self) -> list[int]:
        """See `Exchange.missing`."""
        if self._within:
            here = [self._firsts[self._host] + q for q in self._local.missing()]
            if self._first is not None and not self.busy:
                self._links.report_wait(here)
            return here
        if not self.busy:
            self._links.pump()  # the question why a rank is absent may have taken long
        found = {member for link in self._links.quiet(self._owes) for member in link.missing}
        pending = self._pending
        if not found and pending is not None and (pending.why_failed() or time.monotonic() > self.patient_until):
            found = {link.to.member for link in self._links.all}  # they have left, and the result did not come
        return sorted(found)

    def left(self) -> list[int]:
        """See `Exchange.left`."""
        away = [link.to.member for link in self._links.all if link.left]
        return sorted(away + [self._firsts[self._host] + q for q in self._local.left()])

    def leave(self) -> None:
        """See `Exchange.leave`."""
        self._local.leave()  # the links learn it by `close`, when no call of another thread uses them

    def called(self) -> dict[int, Array]:
        """See `Exchange.called`."""
        found = {self._firsts[self._host] + q: header for q, header in self._local.called().items()}
        if self._first is None:  # else the ranks of this host compare what they call
            found = {self._firsts[self._host] + self._index: np.frombuffer(self._links.header, np.int64)}
        for link in self._links.all:
            header = link.describe_head()
            if header is not None:
                found[link.to.member] = header
        return dict(sorted(found.items()))

    def broken_link(self) -> str:
        """See `Exchange.broken_link`."""
        if self._within:
            return ""
        return self._links.broken(self._owes) or ("" if self._pending is None else self._pending.why_failed())

    def report(self, how: int, text: bytes) -> None:
        """Report to all counterparts that a call has failed."""
        if not self.busy:
            self._links.last_word(how, text)

    def close(self) -> None:
        """See `Exchange.close`."""
        if not self.busy:
            self._links.last_word(None, b"")
        self._links.close()
        if self._library is not None:
            self._library.close(failed=bool(self._memory.broken) or self._pending is not None)

    # ---- Calls ------------------------------------------------------------------------------------------------------

    def _barrier(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        yield from self._inside("barrier", "sum", array, out)
        if self._index == 0:
            self._links.announce(b"")
            yield from self._heads()
        yield from self._inside("barrier", "sum", array, out)

    def _broadcast(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        data = array.view(np.uint8)
        host = max(h for h in range(self._hosts) if self._firsts[h] <= root)
        source = host == self._host
        body = 0 if len(data) <= SMALL_BYTES else len(data) // (self._rails * 64) * (self._rails * 64)
        rest = data[body:]
        inner_root = root - self._firsts[host] if source else 0
        if source:
            yield from self._inside("broadcast", "sum", rest, rest, inner_root)
        else:
            yield from self._inside("barrier", "sum", NO_BYTES, NO_BYTES)
        spread = Spread(self._links, self._host, self._rails, self._index, {host: data[:body]}, CHUNK_BYTES)
        self._links.work = spread if self._has_rail else None
        if self._has_rail:
            self._links.announce(as_bytes(rest) if source else b"")
        for chunk in range(spread.count):
            for _, whole, part in spread.chunk(chunk):
                if source:
                    yield from self._inside("broadcast", "sum", whole, whole, inner_root)
                    if self._has_rail:
                        spread.send(chunk)
                else:
                    yield from self._spread_here(spread, chunk, host, whole, part)
        yield from self._heads()
        self._links.work = None
        if len(rest) and not source:
            if self._has_rail:
                (link,) = (link for link in self._links.all if link.to.host == host)
                rest[...] = np.frombuffer(self._payload(link), np.uint8)
            if not self._even:
                yield from self._inside("broadcast", "sum", rest, rest)

    def _spread_here(self, spread: Spread, chunk: int, host: int, whole: Array, part: Array) -> Steps:
        """Wait for this rank's part of a chunk of another host, and give the whole to all ranks of this one."""
        if self._has_rail:
            yield from self._wait(lambda: spread.has(host, chunk), lambda link: spread.owes(link.to.host))
        yield from self._from_links(whole, part if self._even and self._rails > 1 else None)

    def _all_gather(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        each, first = len(array), self._firsts[self._host]
        own = out[first * each : (first + self._here) * each]
        yield from self._inside("all_gather", "sum", array, own)
        whole = out.view(np.uint8)
        ends = [(self._firsts[h] * array.nbytes, (self._firsts[h] + self._workers[h]) * array.nbytes) for h in
                range(self._hosts)]  # fmt: skip
        blocks, rests = {}, {}
        for h, (start, stop) in enumerate(ends):
            unit = self._rails * 64
            body = 0 if whole.nbytes <= SMALL_BYTES else (stop - start) // unit * unit
            blocks[h], rests[h] = whole[start : start + body], whole[start + body : stop]
        spread = Spread(self._links, self._host, self._rails, self._index, blocks, CHUNK_BYTES)
        if self._has_rail:
            self._links.work = spread
            self._links.announce(as_bytes(rests[self._host]))
            for chunk in range(spread.count):
                spread.send(chunk)
            self._links.pump()
        for chunk in range(spread.count):
            for h, block, part in spread.chunk(chunk):
                if h != self._host:
                    yield from self._spread_here(spread, chunk, h, block, part)
        yield from self._heads()
        self._links.work = None
        if self._has_rail:
            for link in self._links.all:
                if len(rests[link.to.host]):
                    rests[link.to.host][...] = np.frombuffer(self._payload(link), np.uint8)
        if not self._even:
            for h, rest in rests.items():
                if h != self._host and len(rest):
                    yield from self._inside("broadcast", "sum", rest, rest)

    # ---- Small all-reduces ------------------------------------------------------------------------------------------

    def _plan(self, header: Array, array: Array) -> _Plan | None:
        """Return what is known of a small all-reduce by its headline, and keep it for the next time."""
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
        """Begin a small all-reduce; what `_small` does, quicker if nobody is late."""
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
        self._running = self._rest_of_small(status, stage, plan, out)
        return self.resume(patience_s)

    def _exchange_small(self, plan: _Plan, out: Array) -> int:
        """Exchange a small array with the other hosts, if they are not late."""
        self._within, self._owes = False, owes_head
        links = self._links
        links.announce(as_bytes(out))
        until = time.monotonic() + SPIN_S
        while not links.agree():
            if not links.pump(1):
                if time.monotonic() > until:
                    return AGAIN
                os.sched_yield()
        if not links.sent():
            return AGAIN
        self._combine_heads(out, plan.op)
        return ENDED

    def _rest_of_small(self, status: int, stage: int, plan: _Plan, out: Array) -> Steps:
        """Go on with a small all-reduce: among the ranks of this host, between hosts, or giving them the result."""
        if stage == 0:
            yield from self._go_on(status)
        if self._index == 0 and stage < 2:
            if stage == 0:
                self._links.announce(as_bytes(out))
            yield from self._heads()
            self._combine_heads(out, plan.op)
        if self._here > 1:
            if stage < 2:
                yield from self._inside("broadcast", "sum", out, out)
            else:
                yield from self._go_on(status)
