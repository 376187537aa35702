"""The part of a broadcast or an all-gather that passes between hosts: arrays of one host go to all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from platoon_base.collectives.hosts_links import RESULT, Links, as_bytes
from platoon_base.links.stream import LONGEST_PAYLOAD

__all__ = ["Spread"]

Array = np.ndarray[Any, Any]


class Spread:
    """Sends a block of this host to all others, and receives theirs, in chunks; each rail has a part of each chunk.

    Parameters
    ----------
    links : Links
    host : int
        Which host this is.
    rails, rail : int
        How many there are, and which one this rank has, if any.
    blocks : mapping of int to ndarray of uint8
        For each host that has one. Their lengths have a factor of 64 times ``rails``.
    chunk_bytes : int
    """

    def __init__(
        self, links: Links, host: int, rails: int, rail: int, blocks: Mapping[int, Array], chunk_bytes: int
    ) -> None:
        self._links, self._host, self._rails, self._rail = links, host, rails, rail
        self._blocks = blocks
        self._width = max(chunk_bytes // (rails * 64), 1) * rails * 64
        longest = max(map(len, blocks.values()))
        self.count = -(-longest // self._width)
        self._came = dict.fromkeys(blocks, 0)
        self._memory = {h: as_bytes(block) for h, block in blocks.items() if h != host}

    def chunk(self, number: int) -> Iterator[tuple[int, Array, Array]]:
        """For each host whose block has this chunk: the host, the chunk, and this rail's part of it."""
        for host, block in self._blocks.items():
            whole = block[number * self._width : (number + 1) * self._width]
            if len(whole):
                each = len(whole) // self._rails
                yield host, whole, whole[self._rail * each :][:each]

    def send(self, number: int) -> None:
        """Send this rail's part of a chunk of this host's block."""
        for host, whole, part in self.chunk(number):
            if host == self._host:
                start = number * self._width + self._rail * (len(whole) // self._rails)
                for link in self._links.all:
                    self._links.post(link, RESULT, 0, start, as_bytes(part), LONGEST_PAYLOAD)
        self._links.pump()

    def _until(self, host: int, number: int) -> int:
        """Bytes that come from a host until it has sent its part of this chunk."""
        return min((number + 1) * self._width, len(self._blocks[host])) // self._rails

    def has(self, host: int, number: int) -> bool:
        """Tell whether this rail's part of a chunk of a host is there."""
        return self._came[host] >= self._until(host, number)

    def owes(self, host: int) -> bool:
        """Tell whether a host has still to send something."""
        return host in self._came and self._came[host] * self._rails < len(self._blocks[host])

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        """See `Work.place`."""
        block = self._memory.get(host)
        if kind != RESULT or chunk or block is None or offset + length > len(block):
            return None
        return block[offset : offset + length]

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        """See `Work.done`."""
        self._came[host] += length
