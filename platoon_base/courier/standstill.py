"""The mean of all hosts while workers stand still: one exchange after which the centers of all hosts are the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.centers.hosts_mean import HostsMean
from platoon_base.centers.overwrites import Overwrites
from platoon_base.courier.conversation import NOT_FILLED, STILL, Conversation, flat_copy
from platoon_base.courier.means import is_finite, weighted_mean
from platoon_base.hosts.world import World
from platoon_base.layout import Layout

__all__ = ["StandstillMean"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

# That a host by whose link nothing goes is waited for: its workers come from the same meeting, and so are on their way.
PATIENCE_S = 10.0


class StillCenter(Protocol):
    """The center of this host; see `platoon_base.centers.host.HostCenter`."""

    overwrites: Overwrites
    hosts_mean: HostsMean

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]:
        """Copy the values and the rule's states."""
        ...

    def move_to(self, values: Sequence[Array]) -> bool:
        """Move it to values, and its workers along; False if a part was left out."""
        ...


class StandstillMean:
    """Brings the center of this host to the mean of all hosts when its workers stand still and ask for it.

    Each host sends one copy to each other one, all of centers that nobody changes, and takes the mean in the order of
    the hosts: so all have the same bits. A host that does not come is left out, and not waited for the next time unless
    it has come by then.

    Parameters
    ----------
    world : World
    layout : Layout
    """

    def __init__(self, world: World, layout: Layout) -> None:
        self._world, self._layout = world, layout
        self._request = 0
        self._asked_at = 0.0
        self._copy: list[Array] = []
        self._peers: dict[int, Conversation] | None = None  # whose copies are awaited
        self._absent: set[int] = set()

    def wanted(self, center: StillCenter) -> bool:
        """Whether workers stand still, and wait for this."""
        return center.hosts_mean.wanted != center.hosts_mean.reached

    def step(self, center: StillCenter, conversations: Mapping[int, Conversation], known: set[int]) -> set[int]:
        """Go on as far as possible; returns the hosts whose links are to begin anew, since they did not come.

        Parameters
        ----------
        center : StillCenter
        conversations : mapping of int to Conversation
            By host.
        known : set of int
            The other hosts that have couriers.
        """
        now = time.monotonic()
        if self._request != center.hosts_mean.wanted:
            self._request, self._asked_at, self._peers = center.hosts_mean.wanted, now, None
        for conversation in conversations.values():
            conversation.fresh = False  # a copy from before
        if self._peers is None and not self._begin(center, conversations, known, now):
            return set()
        peers = {host: each for host, each in (self._peers or {}).items() if conversations.get(host) is each}
        unfinished = {host: each for host, each in peers.items() if each.sending or each.still is None}
        late = {host for host, each in unfinished.items() if now > max(self._asked_at, each.moved_at) + PATIENCE_S}
        if len(late) < len(unfinished):
            return set()
        self._end(center, {host: each for host, each in peers.items() if host not in late})
        self._absent = set(late)
        if late:
            log.warning(
                "the hosts %s did not come to the mean of all hosts within %g s: this evaluation is without them",
                sorted(late), PATIENCE_S,
            )  # fmt: skip
        return late

    def _begin(
        self, center: StillCenter, conversations: Mapping[int, Conversation], known: set[int], now: float
    ) -> bool:
        """Copy the center, and send the copy to all hosts that have one; False while some links are missing."""
        stamps = {host: conversations[host].stamp if host in conversations else None for host in known}
        self._absent -= {host for host in self._absent & conversations.keys() if conversations[host].still is not None}
        others = {host for host in known - self._absent if stamps[host] != NOT_FILLED}
        ready = {host for host in others if stamps[host] == center.overwrites.stamp}
        if ready < others and now < self._asked_at + PATIENCE_S:
            return False
        buffer, self._copy = flat_copy(self._layout)
        values, _ = center.snapshot()
        for target, value in zip(self._copy, values):
            np.copyto(target, value)
        self._peers = {host: conversations[host] for host in ready}
        for conversation in self._peers.values():
            conversation.post(STILL, buffer)
        return True

    def _end(self, center: StillCenter, peers: Mapping[int, Conversation]) -> None:
        copies = {self._world.host: self._copy}
        copies.update((host, each.take_still()) for host, each in peers.items())
        finite = sorted(host for host, copy in copies.items() if all(map(is_finite, copy)))
        if len(finite) > 1 and self._world.host in finite:
            weights = [float(self._world.workers[host]) for host in finite]
            if not center.move_to(weighted_mean([copies[host] for host in finite], weights)):
                log.warning("a part of the center was held for long, and is not at the mean of all hosts")
        center.hosts_mean.reached = self._request
        self._peers, self._copy = None, []
