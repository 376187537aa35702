"""Interface by which couriers and workers make the centers of several hosts equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.centers.round_totals import RoundTotals

__all__ = ["AcrossHosts"]

Array = np.ndarray[Any, Any]


class AcrossHosts(Protocol):
    """One host's center in rounds of all hosts: `HostsRounds` if rules wait, or `HostsMeans`."""

    # Other hosts change the center only in these rounds; else couriers also exchange centers in
    # between.
    workers_wait: bool

    @property
    def made(self) -> int:
        """The latest round that this center has completed."""
        ...

    @property
    def wanted(self) -> int:
        """The latest round whose center a worker of this host waits for; 0 if there is none."""
        ...

    def new_totals(self) -> RoundTotals:
        """Allocate memory for a host's contribution to a round."""
        ...

    def are_gathered(self, number: int) -> bool:
        """Return whether this center holds the contributions of all hosts to a round."""
        ...

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until `are_gathered`, or raise `CollectiveTimeoutError`."""
        ...

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy this host's contribution to a round; False if a stripe stayed locked: retry."""
        ...

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Combine the hosts' contributions, in order; False if a stripe stayed locked: retry."""
        ...

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's; False if a stripe stayed locked: retry."""
        ...
