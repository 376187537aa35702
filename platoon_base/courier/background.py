"""Exchanges in the background: the couriers send copies of the centers to all hosts, and the rule moves each center."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from platoon_base.centers.hosts_means import is_finite, weighted_mean
from platoon_base.centers.overwrites import Overwrites
from platoon_base.compression.packing import Packing
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import COPY, Conversation, flat_copy
from platoon_base.courier.reference import Reference
from platoon_base.hosts.world import World
from platoon_base.layout import Layout
from platoon_base.rules.hosts import HostsRule
from platoon_base.system.limits import available_cores

__all__ = ["BackgroundExchanges", "MovingCenter"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

PATIENCE_S = 2.5  # how long an exchange waits for a host whose link stalls
_BUSY, _BUSY_ON_A_FULL_MACHINE, _IDLE_CORES = 0.3, 0.02, 0.5
_REPORT_S = 1.0
_MISSED_TO_REPORT = 3  # consecutive exchanges without a host, after which a warning names it


@runtime_checkable
class MovingCenter(Protocol):
    """The center of this host; see `platoon_base.centers.host.HostCenter`."""

    overwrites: Overwrites

    def copy_parameters(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> None:
        """Copy the parameters."""
        ...

    def move(self, by: Sequence[Array], written: int, with_average: bool = False) -> bool:
        """Move the center and its workers; False if a stripe was locked for too long and did not move."""
        ...


class BackgroundExchanges:
    """The exchanges of one host, one after the other, while its workers train.

    An exchange copies the center, stripe by stripe, sends the copy to every linked host, waits for their copies, and
    moves center and workers. A host whose link stalls is left out of that exchange.

    Parameters
    ----------
    world : World
    layout : Layout
        Of the parameters, without moments, which stay those of each host.
    rule : HostsRule
    every_s : float
        Seconds from the beginning of one exchange to that of the next, at least.
    report : callable
        Sends a message to the launcher.
    packing : Packing, optional
        Exchanges send packed differences to earlier copies, see `Reference`; whole copies by default.

    Attributes
    ----------
    workers : dict of int to int
        The number of live workers of each host, by which its copy is weighted.
    count : int
        How often an exchange has moved this host's center.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        rule: HostsRule,
        every_s: float,
        report: Callable[[between.News], None],
        packing: Packing | None = None,
    ) -> None:
        self._world, self._rule, self._every_s, self._report = world, rule, every_s, report
        self._layout = layout
        self.workers = dict(enumerate(world.workers))
        self._states = [layout.empty() for _ in rule.states]
        self._members: frozenset[int] = frozenset()
        self._buffer, self._copy = flat_copy(layout)
        self._reference = None if packing is None else Reference(layout, packing)
        self._peers: dict[int, Conversation] | None = None  # whose copies are awaited; None between exchanges
        self._stamp = self._written = 0  # of the copy
        self._began = self._next = self._next_report = 0.0
        self._busy_s = 0.0  # of this exchange
        self._missed: dict[int, int] = {}  # by host, exchanges that it was left out of since the last one with it
        self._diverged: set[int] = set()
        self.count = 0

    def has_new_link(self) -> None:
        """Reset the members: a courier may have restarted, so the rule's states may differ between hosts."""
        self._members = frozenset()

    def drop(self) -> None:
        """Abandon the exchange in flight: an overwrite is about to make all centers equal."""
        if any(each.sending for each in (self._peers or {}).values()):
            self._buffer, self._copy = flat_copy(self._layout)  # the other memory is still to be sent
        self._peers, self._members = None, frozenset()
        if self._reference is not None:
            self._reference.forget()

    def was_busy(self, seconds: float) -> None:
        """Add the processor time that sending and receiving took."""
        self._busy_s += seconds

    def step(self, center: MovingCenter, conversations: Mapping[int, Conversation]) -> set[int]:
        """Advance the exchange without blocking; return the hosts whose links have stalled and must be opened again."""
        if self._peers is None:
            self._begin(center, conversations)
            return set()
        return self._end(center, conversations)

    def _begin(self, center: MovingCenter, conversations: Mapping[int, Conversation]) -> None:
        """Copy the center and send the copy, when the period is over or another host has begun an exchange."""
        stamp, written = center.overwrites.stamp, center.overwrites.written
        if written != center.overwrites.spread:
            return  # an overwrite is being distributed: the other hosts get the whole center first
        peers = {host: each for host, each in conversations.items() if each.stamp == stamp and not each.sending}
        now = time.monotonic()
        waits = any(each.comes for each in peers.values())
        if not peers or now < self._next - (self._every_s if waits else 0):
            return
        began = time.process_time()
        center.copy_parameters(self._copy)
        if self._reference is not None:
            self._reference.send(self._copy, peers, stamp)
        else:
            for conversation in peers.values():
                conversation.post(COPY, self._buffer)
        self._peers, self._began, self._stamp, self._written = peers, now, stamp, written
        self._busy_s += time.process_time() - began

    def _end(self, center: MovingCenter, conversations: Mapping[int, Conversation]) -> set[int]:
        """Move the center once all copies have arrived, except those of hosts whose links stall."""
        peers = {host: each for host, each in (self._peers or {}).items() if conversations.get(host) is each}
        now = time.monotonic()
        unfinished = {host: each for host, each in peers.items() if each.sending or not each.fresh}
        late = {host for host, each in unfinished.items() if now > max(self._began, each.moved_at) + PATIENCE_S}
        if len(late) < len(unfinished):
            return set()
        self._peers = None
        fresh = [host for host, each in peers.items() if each.fresh]
        if fresh:
            self._move(center, {host: peers[host] for host in fresh})
        elif not peers:  # all links are closed: nothing is left of this exchange
            return set()
        self._note_missing(late - set(fresh), fresh)
        # At most once per period, and with pauses that leave the processor to the workers.
        self._next = max(self._began + self._every_s, now + self._busy_s * (1 / _share() - 1))
        self._busy_s = 0.0
        if fresh and now >= self._next_report:
            self._next_report = now + _REPORT_S
            self._report(between.Exchanged(self.count, [self._world.host, *sorted(fresh)], now - self._began))
        return {host for host in late if peers[host].sending}  # their send buffer is about to be overwritten

    def _note_missing(self, missing: set[int], fresh: Sequence[int]) -> None:
        for host in fresh:
            if self._missed.pop(host, 0) >= _MISSED_TO_REPORT:
                self._report(between.LeftOut(host, 0))
        for host in missing:
            self._missed[host] = self._missed.get(host, 0) + 1
            if self._missed[host] == _MISSED_TO_REPORT:
                self._report(between.LeftOut(host, _MISSED_TO_REPORT))
                log.warning(
                    "host %d was left out of %d consecutive exchanges: its link stalled for %g s each time; until "
                    "it recovers, that host and the others train without each other's updates",
                    host, _MISSED_TO_REPORT, PATIENCE_S,
                )  # fmt: skip

    def _move(self, center: MovingCenter, fresh: Mapping[int, Conversation]) -> None:
        began = time.process_time()
        alike = {host: each for host, each in fresh.items() if each.copy_stamp == self._stamp}
        finite = {host: each for host, each in alike.items() if self._is_finite(host, each.theirs)}
        overwritten = center.overwrites.stamp != self._stamp
        if not overwritten and self._is_finite(self._world.host, self._copy) and finite:
            self._move_by(center, finite)
        for conversation in fresh.values():  # the next copies may overwrite these
            conversation.fresh = False
        self._busy_s += time.process_time() - began

    def _move_by(self, center: MovingCenter, fresh: Mapping[int, Conversation]) -> None:
        weights = [float(self.workers[host]) for host in [self._world.host, *fresh]]
        if not any(weights):
            return
        copy = self._copy if self._reference is None else self._reference.values
        means = weighted_mean([copy, *(each.theirs for each in fresh.values())], weights)
        if self._members != frozenset(fresh):
            self._members = frozenset(fresh)
            self._restart_rule(means)
        moves = []
        for i, (own, mean) in enumerate(zip(copy, means)):
            state = tuple(array[i].reshape(-1) for array in self._states)
            moves.append(self._rule.correction(own.reshape(-1), mean.reshape(-1), state).reshape(own.shape))
        if not center.move(moves, self._written, with_average=not self.workers[self._world.host]):
            log.warning("a worker held a part of the center for long: this exchange did not move that part")
        self.count += 1

    def _is_finite(self, host: int, values: Sequence[Array]) -> bool:
        """Return whether all numbers of a host's copy are finite; warn once if they are not."""
        if all(map(is_finite, values)):
            self._diverged.discard(host)
            return True
        if host not in self._diverged:
            self._diverged.add(host)
            log.warning(
                "the center of host %d holds NaN or infinity: exchanges leave it out until its values are finite "
                "again; if training has diverged there, lower the learning rate",
                host,
            )
        return False

    def _restart_rule(self, means: list[Array]) -> None:
        """Reset the rule's states to the hosts' mean, since another set of hosts takes part now."""
        for i, state in enumerate(self._states):
            for target, mean in zip(state, means):
                np.copyto(target, mean if i == 0 else 0)


def _share() -> float:
    """Return the fraction of time that the courier may compute: small while the workers keep all cores busy."""
    idle = available_cores() - os.getloadavg()[0]
    return _BUSY if idle > _IDLE_CORES else _BUSY_ON_A_FULL_MACHINE
