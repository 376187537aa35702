"""The hosts of a job as its workers know them: how many workers each has, and how to reach it."""

from __future__ import annotations

import bisect
import itertools

import msgspec

__all__ = ["ONE_HOST", "World"]


class World(msgspec.Struct, frozen=True):
    """The hosts of a job; workers are numbered host by host.

    Attributes
    ----------
    workers : list of int
        The number of workers launched on each host; empty for a job of this host only.
    host : int
        Which of them this is, from 0.
    names : list of str
        Of each host, for messages.
    addresses : list of str
        By which the other hosts reach each one: IP addresses.
    data_key : str
        32 bytes in hexadecimal digits, by which data between hosts are encrypted; empty if they are not.
    compression : str
        By which couriers compress what they send; see `platoon_base.compression.codecs.codec_of`.
    """

    workers: list[int] = []
    host: int = 0
    names: list[str] = []
    addresses: list[str] = []
    data_key: str = ""
    compression: str = "none"

    def __repr__(self) -> str:  # it may end up in a log
        return f"World(workers={self.workers}, host={self.host}, names={self.names}, addresses={self.addresses}, ...)"

    @property
    def hosts(self) -> int:
        """The number of hosts, at least 1."""
        return max(1, len(self.workers))

    @property
    def several(self) -> bool:
        """Whether the job runs on more than one host."""
        return self.hosts > 1

    @property
    def size(self) -> int:
        """The number of workers launched on all hosts."""
        return sum(self.workers)

    def ranks_on(self, host: int) -> range:
        """Return the ranks that were launched on a host."""
        first = sum(self.workers[:host])
        return range(first, first + self.workers[host])

    @property
    def ranks_here(self) -> range:
        """The ranks that were launched on this host."""
        return self.ranks_on(self.host)

    def host_of(self, rank: int) -> int:
        """Return the host that a rank was launched on; raises IndexError for a rank that was not launched."""
        if not 0 <= rank < self.size:
            raise IndexError(rank)
        return bisect.bisect_right(list(itertools.accumulate(self.workers)), rank)


ONE_HOST = World()
