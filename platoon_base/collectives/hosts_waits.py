"""How a rank of a group over several hosts waits: for the ranks of its host, and for its links."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any, Callable

import numpy as np

from platoon_base.collectives.host_exchange import AGAIN, BROKEN, ENDED, MISMATCH, Exchange, Memory, part_of
from platoon_base.collectives.hosts_libraries import HostsLibrary, Pending
from platoon_base.collectives.hosts_links import HEADER_BYTES, Link, Links
from platoon_base.collectives.hosts_parts import Desk

__all__ = ["KEPT", "SPIN_S", "HostsWaits", "Steps", "owes_head"]

Array = np.ndarray[Any, Any]
Steps = Generator[int, None, None]

SPIN_S = 2e-4  # for which a wait looks again and again, giving its core to others in between, before it sleeps
KEPT = 1024  # headlines: scripts repeat the same few calls
_SLEEP_S = 0.02  # between two looks whether a rank of this host has failed
_PUMP_S = 2e-3  # the same, whether a link can move, while this rank waits in shared memory
_NAP_S = 5e-5  # between two looks whether a library has ended
_ALIGN = 16  # elements


class HostsWaits:
    """Waits of one rank; a step of a call is a generator that yields a status of `Exchange.resume` where it waits.

    Parameters
    ----------
    local : Exchange
        Among the ranks of this host.
    memory : Memory
        Theirs.
    workers : sequence of int
        The number of ranks on each host.
    host, index : int
        Which host this is, and this rank's index on it.
    links : Links
        To the counterparts on all other hosts; none if this rank is no rail's.
    by_library : bool
        Whether a library adds large arrays over the hosts, in place of the links.
    library : HostsLibrary, optional
        That of the first rank of a host; the others have none.
    """

    def __init__(
        self,
        local: Exchange,
        memory: Memory,
        workers: Sequence[int],
        host: int,
        index: int,
        links: Links,
        by_library: bool = False,
        library: HostsLibrary | None = None,
    ) -> None:
        self._local, self._memory, self._links = local, memory, links
        self._by_library, self._library = by_library, library
        self._workers, self._host, self._index = list(workers), host, index
        self._hosts, self._size, self._here = len(workers), sum(workers), workers[host]
        self._rails = min(workers)
        self._firsts = [sum(workers[:h]) for h in range(len(workers))]
        parts = self._rails * self._hosts
        self._unit = parts * max(1, min(_ALIGN, 4096 // parts))  # elements of which all parts have as many
        self._has_rail = index < self._rails
        self._even = self._here == self._rails
        self._running: Steps = iter(())  # type: ignore[assignment]
        self._until = 0.0
        self._within = True  # this rank waits for those of its host
        self._owes: Callable[[Link], bool] = lambda link: False
        self._pending: Pending | None = None
        self._adding: Array | None = None  # what a library adds
        self.patient_until = 0.0  # a library tells nothing of data that move: until then the call may take
        self._first: Array | None = None  # the headline, until the ranks of this host have compared it
        self._headers: dict[tuple[Any, ...], Array] = {}
        self._plans: dict[int, Any] = {}
        self._desk = Desk(self._hosts)
        self.calls = 0
        self.busy = False

    def _inside(self, kind: str, op: str, array: Array, out: Array, root: int = 0) -> Steps:
        """Make a call among the ranks of this host."""
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
        """Go on with a call among the ranks of this host until it has ended."""
        while status != ENDED:
            if status != AGAIN:
                yield status
            self._links.pump()
            if self._memory.broken:
                yield BROKEN
            if time.monotonic() >= self._until:
                yield AGAIN
            status = self._local.resume(self._patience())
        self._first = None

    def _patience(self) -> float:
        left_s = max(self._until - time.monotonic(), 0.0)
        return min(left_s, _PUMP_S) if self._links.work is not None or not self._links.sent() else left_s

    def _wait(self, done: Callable[[], bool], owes: Callable[[Link], bool]) -> Steps:
        """Wait for the links until ``done()``; ``owes(link)`` tells what for."""
        self._within = False
        self._owes = owes
        links, since = self._links, 0.0
        spin_s = SPIN_S if links.work is None else 0.0  # nobody waits for the first byte of many
        while not done():
            moved = links.pump()
            if links.differ():
                yield MISMATCH
            if self._memory.broken and not done():
                yield BROKEN
            now = time.monotonic()
            if now >= self._until:
                yield AGAIN  # also while data come: another thread may close the group
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
        """Wait until the counterparts have come to this call, and what was sent to them is gone."""
        if self._has_rail:
            links = self._links
            yield from self._wait(lambda: links.heads() and links.sent(), owes_head)

    def _added(self, library: HostsLibrary, array: Array) -> Steps:
        """Replace an array by the sum over the hosts, by the library; all hosts have come to this call."""
        self._pending = pending = library.begin_sum(array)
        # A rank that has left has the result, so what this rank needs is on its way.
        self._within, self._owes = False, lambda link: not link.left
        since = looked = time.monotonic()
        while not pending.done():
            now = time.monotonic()
            if now >= looked + _PUMP_S:
                looked = now
                self._links.pump()
                if self._memory.broken:
                    yield BROKEN
                if now >= self._until:
                    yield AGAIN
            if now < since + SPIN_S:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)
        self._pending = None

    def _payload(self, link: Link) -> memoryview:
        """Return what came with a head."""
        return memoryview(link.head or b"")[HEADER_BYTES:]


def owes_head(link: Link) -> bool:
    """Tell whether the head of a call is still to come by a link, or to leave."""
    return link.head is None or link.stream.sent < link.stream.posted
