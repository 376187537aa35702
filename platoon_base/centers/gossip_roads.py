"""How one worker sends to workers of other hosts: it draws among them, and leaves its message to the courier."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.gossip_hosts import HostsMemory, Road

__all__ = ["Outgoing", "Roads"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

_ENOUGH, _MOST_UNSENT = 30, 0.9  # from how many messages and from which part of them on a warning says so


class Outgoing(NamedTuple):
    """Room for a message to a worker of another host.

    Attributes
    ----------
    road : Road
    worker : int
        Which of the living workers there, in the order of their ranks.
    stamp : int
        That of the latest overwrite, from before the values of the message were read.
    """

    road: Road
    worker: int
    stamp: int

    def write(self, life: int, weights: Sequence[int], values: Sequence[Array]) -> None:
        """Write a message, which `Road.post` leaves to the courier."""
        self.road.message.write(life, self.worker, self.stamp, weights, values)


class Roads:
    """The roads to other hosts, for one worker.

    Parameters
    ----------
    memory : HostsMemory
    rank : int

    Attributes
    ----------
    sent, unsent : int
        The messages to other hosts so far, and those for which there was no room.
    """

    def __init__(self, memory: HostsMemory, rank: int) -> None:
        self._memory, self._rank = memory, rank
        self._claimed: Road | None = None
        self.sent = self.unsent = 0
        self._has_warned = False

    def count(self) -> int:
        """Return how many workers of other hosts can be reached."""
        return sum(road.workers for road in self._memory.roads.values())

    def claim(self, index: int) -> Outgoing | None:
        """Reserve the room for a message to one of these workers, host by host; None if there is none.

        The room is full while an earlier message is under way: a worker keeps its weight then, and sends later.
        """
        for road in self._memory.roads.values():
            workers = road.workers
            if index < workers:
                self._claimed = road  # before: an interrupt must not leave the lock behind
                outgoing = Outgoing(road, index, self._memory.overwrites.stamp) if road.claim() else None
                self._count(outgoing is not None, road.host)
                return outgoing
            index -= workers
        return None  # the courier has counted fewer meanwhile

    def claim_any(self) -> Outgoing | None:
        """Reserve the room for a message to any host that can be reached; None if there is none."""
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
        """End what `claim` began."""
        road, self._claimed = self._claimed, None
        if road is not None:
            road.release()
