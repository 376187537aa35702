"""The consensus of all hosts, taken while all workers wait.

It is a round like those of `platoon_base.centers.hosts_means`. When no message is under way any more, each host's
courier takes the mean of its slots and its weight, and sends both to the others. Then each host takes the mean of
these, by their weights and in the order of the hosts, so all hosts have the same bits. Slots stay as they are: what
workers read is that mean, until one of them trains on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.fragments import Fragments
from platoon_base.centers.gossip_hosts import HostsMemory
from platoon_base.centers.gossip_slots import Slots
from platoon_base.centers.hosts_means import is_finite, weighted_mean
from platoon_base.centers.overwrites import await_count
from platoon_base.centers.round_totals import RoundTotals
from platoon_base.centers.stripes import copy_all, cut
from platoon_base.layout import Layout, ParameterSpec, Piece

__all__ = ["GossipMeans"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)


class GossipMeans:
    """The slots of one host, for means over several hosts; see `AcrossHosts`.

    Parameters
    ----------
    layout : Layout
    pieces : list of tuple of Piece
        Of each stripe.
    slots : Slots
    memory : HostsMemory
    own_mean : callable
        ``own_mean(out)`` copies the mean of this host's slots, and returns their weight for each stripe.
    put : callable
        ``put(values)`` overwrites all slots; it returns False if a stripe stayed locked.

    Attributes
    ----------
    slots : Slots
    memory : HostsMemory
    is_quiet : callable
        ``is_quiet(number)`` returns whether every message from before this round is merged; the courier sets it.
    """

    workers_wait = False
    wanted = 0  # no worker waits for a round that it had no part in

    def __init__(
        self,
        layout: Layout,
        pieces: list[tuple[Piece, ...]],
        slots: Slots,
        memory: HostsMemory,
        own_mean: Callable[[list[Array]], list[int]],
        put: Callable[[Sequence[Array]], bool],
    ) -> None:
        self.slots, self.memory = slots, memory
        self._pieces, self._own_mean, self._put = pieces, own_mean, put
        weights = ParameterSpec("weights", (len(pieces),), "float64")
        self.fragments = Fragments(Layout((*layout.specs, weights)), ())
        self.is_quiet: Callable[[int], bool] = lambda number: True

    @property
    def made(self) -> int:
        """The latest mean that this host has."""
        return self.memory.made

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until this host has a mean; raises `CollectiveTimeoutError`."""
        await_count(lambda: self.made, number, timeout_s, "the mean of the workers of all hosts")

    def new_totals(self) -> RoundTotals:
        """Allocate memory for the mean and the weights of a host."""
        return RoundTotals(self.fragments)

    def are_gathered(self, number: int) -> bool:
        """Return whether this host has a mean."""
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the mean of this host's slots, and their weights; False while messages are under way."""
        if not self.is_quiet(number):
            return False
        totals.arrays[-1][...] = self._own_mean(totals.arrays[:-1])
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Keep the mean of several hosts, in order; one with NaN or infinity is left out, on all hosts.

        The totals have their weights, so ``workers`` is not used.
        """
        finite = [each.arrays for each in totals if all(map(is_finite, each.arrays))]
        if len(finite) < len(totals):
            log.warning(
                "the workers of %d of %d hosts have parameters with NaN or infinity, and are left out of the mean: has "
                "training diverged? A lower learning rate helps",
                len(totals) - len(finite),
                len(totals),
            )
        self.memory.agreed = False
        for index, pieces in enumerate(self._pieces if finite else []):
            weighted = [each for each in finite if each[-1][index]] or finite[:1]  # else all of it was lost
            weights = [float(each[-1][index]) for each in weighted] if len(weighted) > 1 else [1.0]
            copy_all(cut(self.memory.mean, pieces), weighted_mean([cut(each, pieces) for each in weighted], weights))
        self.memory.agreed = bool(finite)
        self.memory.made = number
        return True

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite all slots with another host's values, which are the mean of round ``number``, if that is new."""
        self.memory.agreed = False
        if not self._put(values):
            return False
        self.take_mean(values, number)
        return True

    def take_mean(self, values: Sequence[Array], number: int) -> None:
        """Keep the mean of a round in which this host had no workers; these train on as they are."""
        if number > self.made:
            self.memory.agreed = False
            copy_all(self.memory.mean, values)
            self.memory.agreed = True
            self.memory.made = number
