"""Consensus of all hosts, computed in a round while all workers wait; see `hosts_means`.

Once no message is in flight, each host's courier sends the mean and weight of its slots to the
others. Each host then computes the weighted mean in the order of the hosts, which gives the same
bits on all. Slots do not change; workers read this mean until one of them trains.
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
    """The slots of one host, for means over several hosts; see `AcrossHosts`."""

    workers_wait = False
    wanted = 0  # No worker waits for a round it did not take part in.

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
        # Set by the courier: whether every message from before a round is merged.
        self.is_quiet: Callable[[int], bool] = lambda number: True

    @property
    def made(self) -> int:
        """Latest round whose mean this host has."""
        return self.memory.made

    def wait(self, number: int, timeout_s: float) -> None:
        await_count(lambda: self.made, number, timeout_s, "the mean of the workers of all hosts")

    def new_totals(self) -> RoundTotals:
        return RoundTotals(self.fragments)

    def are_gathered(self, number: int) -> bool:
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the mean and weights of this host's slots; False while messages are in flight."""
        if not self.is_quiet(number):
            return False
        totals.arrays[-1][...] = self._own_mean(totals.arrays[:-1])
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Store the weighted mean of several hosts, in order, without non-finite ones."""
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
            # Without any weight, use the first host.
            weighted = [each for each in finite if each[-1][index]] or finite[:1]
            weights = [float(each[-1][index]) for each in weighted] if len(weighted) > 1 else [1.0]
            copy_all(cut(self.memory.mean, pieces), weighted_mean([cut(each, pieces) for each in weighted], weights))
        self.memory.agreed = bool(finite)
        self.memory.made = number
        return True

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite all slots with another host's values, the mean of round ``number``."""
        self.memory.agreed = False
        if not self._put(values):
            return False
        self.take_mean(values, number)
        return True

    def take_mean(self, values: Sequence[Array], number: int) -> None:
        """Store the mean of a round without workers of this host; its slots do not change."""
        if number > self.made:
            self.memory.agreed = False
            copy_all(self.memory.mean, values)
            self.memory.agreed = True
            self.memory.made = number
