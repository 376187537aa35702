"""How a worker sends to other hosts: it draws a worker and queues a message for the courier."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.gossip_hosts import HostsMemory, Road

__all__ = ["Outgoing", "Roads"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

# A warning is logged from this many messages and this unsent part on.
_ENOUGH, _MOST_UNSENT = 30, 0.9


class Outgoing(NamedTuple):
    """Reserved queue for a message to a worker of another host."""

    road: Road
    worker: int  # Index among the live workers there, by rank.
    stamp: int  # Version of the latest overwrite, read before the values of the message.

    def write(self, life: int, weights: Sequence[int], values: Sequence[Array]) -> None:
        """Write a message; `Road.post` then passes it to the courier."""
        self.road.message.write(life, self.worker, self.stamp, weights, values)


class Roads:
    """Queues to other hosts, for one worker."""

    def __init__(self, memory: HostsMemory, rank: int) -> None:
        self._memory, self._rank = memory, rank
        self._claimed: Road | None = None
        self.sent = self.unsent = 0
        self._has_warned = False

    def count(self) -> int:
        """Return the number of reachable workers on other hosts."""
        return sum(road.workers for road in self._memory.roads.values())

    def claim(self, index: int) -> Outgoing | None:
        """Reserve the queue to worker ``index`` of other hosts; None if it is full."""
        for road in self._memory.roads.values():
            workers = road.workers
            if index < workers:
                self._claimed = road  # Set first: an interrupt must not leave the lock held.
                outgoing = Outgoing(road, index, self._memory.overwrites.stamp) if road.claim() else None
                self._count(outgoing is not None, road.host)
                return outgoing
            index -= workers
        return None  # The courier has reduced the counts meanwhile.

    def claim_any(self) -> Outgoing | None:
        """Reserve the queue to any reachable host; None if all are full."""
        for road in self._memory.roads.values():
            if road.workers:
                self._claimed = road
                if road.claim():
                    return Outgoing(road, 0, self._memory.overwrites.stamp)
        self._claimed = None
        return None

    def _count(self, is_sent: bool, host: int) -> None:
        self.sent += is_sent
        self.unsent += not is_sent
        total = self.sent + self.unsent
        if not self._has_warned and total >= _ENOUGH and self.unsent > _MOST_UNSENT * total:
            self._has_warned = True
            log.warning(
                "rank %d: of %d messages to workers of other hosts %d were not sent, the last one since an earlier "
                "message to host %d was still under way: the link carries fewer than the workers draw, or steps are "
                "shorter than a message takes. They keep their weight, and gossip with other hosts less than the rule "
                "says. Lower GoSGD's probability, or synchronize more seldom",
                self._rank, total, self.unsent, host,
            )  # fmt: skip

    def release(self) -> None:
        road, self._claimed = self._claimed, None
        if road is not None:
            road.release()
