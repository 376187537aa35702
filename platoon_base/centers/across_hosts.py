"""How the center of one host comes to be alike with those of other hosts, as couriers and workers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.centers.round_totals import RoundTotals

__all__ = ["AcrossHosts"]

Array = np.ndarray[Any, Any]


class AcrossHosts(Protocol):
    """The center of one host in rounds of all hosts: `HostsRounds` if workers wait in them, else `HostsMeans`.

    Attributes
    ----------
    workers_wait : bool
        Whether the center changes in these rounds alone. Otherwise couriers exchange it in between too.
    """

    workers_wait: bool

    @property
    def made(self) -> int:
        """The latest round that this center has come to."""
        ...

    def new_totals(self) -> RoundTotals:
        """Make room for what a host contributes to a round."""
        ...

    def are_gathered(self, number: int) -> bool:
        """Return whether this center holds what all hosts have contributed to a round."""
        ...

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until `are_gathered`; raises `CollectiveTimeoutError`."""
        ...

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy what this host contributes to a round; False if a stripe stayed taken: do it again."""
        ...

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Put together what hosts have contributed, in their order; False if a stripe stayed taken: do it again.

        Parameters
        ----------
        totals : sequence of RoundTotals
        number : int
        workers : sequence of int
            Of each host.
        """
        ...

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Put another host's center, at round ``number``, in place of this one; False if a stripe stayed taken."""
        ...
