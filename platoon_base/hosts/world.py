"""The hosts of a job for its workers: their numbers of workers and addresses."""

from __future__ import annotations

import bisect
import itertools

import msgspec

__all__ = ["ONE_HOST", "World"]


class World(msgspec.Struct, frozen=True):
    """The hosts of a job; ranks are numbered across hosts."""

    workers: list[int] = []  # Workers launched on each host; empty for a job of this host only.
    host: int = 0
    names: list[str] = []
    addresses: list[str] = []
    data_key: str = ""  # 32 bytes in hexadecimal encrypt data between hosts; empty: unencrypted.
    compression: str = "none"  # See `platoon_base.compression.codecs.codec_of`.

    def __repr__(self) -> str:  # Logs may contain it, so the key is left out.
        return f"World(workers={self.workers}, host={self.host}, names={self.names}, addresses={self.addresses}, ...)"

    @property
    def hosts(self) -> int:
        return max(1, len(self.workers))  # A job of this host only has an empty list.

    @property
    def several(self) -> bool:
        return self.hosts > 1

    @property
    def size(self) -> int:
        return sum(self.workers)

    def ranks_on(self, host: int) -> range:
        first = sum(self.workers[:host])
        return range(first, first + self.workers[host])

    @property
    def ranks_here(self) -> range:
        return self.ranks_on(self.host)

    def host_of(self, rank: int) -> int:
        """Return the host that a rank was launched on; raise IndexError for other ranks."""
        if not 0 <= rank < self.size:
            raise IndexError(rank)
        return bisect.bisect_right(list(itertools.accumulate(self.workers)), rank)


ONE_HOST = World()
