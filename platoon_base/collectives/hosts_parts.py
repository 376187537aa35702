"""The data of one call that a rank's links exchange between hosts, and their combination.

In a broadcast or an all-gather, arrays of one host are sent to all others. In an all-reduce or a
reduce-scatter, each host combines a part of the whole::

    share[g, h]  := the part that host h combines, of the array that the ranks of host g combined
    result[h]    := op(share[0, h], ..., share[H-1, h])

A host sends every other host its share and, in an all-reduce, its result: 2 (H-1)/H of the array,
which is the minimum, in two steps for any number of hosts. Chunks do not wait for earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from platoon_base.collectives.host_exchange import REDUCERS, toward_zero
from platoon_base.collectives.hosts_links import RESULT, SHARE, Links, as_bytes
from platoon_base.links.stream import MAX_PAYLOAD_BYTES

__all__ = [
    "CHUNK_BYTES",
    "ChunkedAllGather",
    "Chunks",
    "Reduction",
    "ReductionScratch",
    "chunk_bounds",
    "combined",
    "finished",
    "is_wide",
]

Array = np.ndarray[Any, Any]

_LINE = 64  # Bytes of alignment.
_KEPT = 64
CHUNK_BYTES, _SHORTEST_CHUNK = 1 << 22, 1 << 20  # Bytes of the whole array.
# A smaller array has this number of chunks: links are idle during the first chunk, and the ranks of
# the host wait for the last.
_CHUNKS = 8
_SHORTEST_PIECE, _LONGEST_PIECE = 1 << 15, 1 << 18  # Bytes of a record.
_ALIGN = 16  # Elements.


def is_wide(dtype: Any, op: str) -> bool:
    return bool(dtype == np.float16 and op in ("sum", "prod", "mean"))


def chunk_bounds(elements: int, item: int, unit: int) -> list[tuple[int, int]]:
    """Cut an array into chunks with lengths that are multiples of ``unit``; return their bounds."""
    chunk_bytes = min(max(elements * item // _CHUNKS, _SHORTEST_CHUNK), CHUNK_BYTES)
    most = max(chunk_bytes // item // unit * unit, unit)
    width = -(-elements // -(-elements // most) // unit) * unit
    return [(start, min(start + width, elements)) for start in range(0, elements, width)]


def _piece_of(share: int, item: int) -> int:
    """Choose the elements per record: several records for a part of ``share`` elements."""
    size = min(max(share * item // 4, _SHORTEST_PIECE), _LONGEST_PIECE)
    return max(size // item // _ALIGN * _ALIGN, _ALIGN)


class _Silent:
    """`numpy.errstate(all="ignore")` in a quarter of the time."""

    def __init__(self) -> None:
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = np.geterrobj()
        np.seterrobj([self._before[0], 0, None])

    def __exit__(self, *exc_info: object) -> None:
        np.seterrobj(self._before)


def silent() -> Any:
    """Return a context in which NumPy does not warn, as of overflows."""
    # `errstate` is quick since NumPy 2.
    return _Silent() if hasattr(np, "seterrobj") else np.errstate(all="ignore")


def finished(total: Array, op: str, size: int) -> None:
    """Divide a sum in place by the number of ranks if the operation is a mean."""
    if op == "mean":
        if total.dtype.kind == "f":
            np.divide(total, total.dtype.type(size), out=total)
        else:
            total[...] = toward_zero(total, size)


def combined(op: str, shares: list[Array], own: int, size: int, out: Array) -> None:
    """Combine arrays in host order into ``out``; overwrite ``shares`` but that of ``own``."""
    function = REDUCERS[op]
    with silent():
        total, scratch = shares[0], shares[1 if own == 0 else 0]
        for number, share in enumerate(shares[1:], 1):
            total = function(total, share, out=out if number == len(shares) - 1 else scratch)
        finished(out, op, size)


class ReductionScratch:
    """Scratch memory with the same alignment on all hosts, for equal combinations."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._kept: dict[tuple[Any, int], tuple[list[Array], Array]] = {}

    def combine(self, op: str, others: Mapping[int, memoryview], own: int, size: int, out: Array) -> None:
        """Combine the array of host ``own``, in ``out``, with those of all others."""
        shares, result = self._rows(out.dtype, len(out))
        shares[own][...] = out
        for host, content in others.items():
            shares[host][...] = np.frombuffer(content, out.dtype)
        combined(op, shares, -1, size, result)
        out[...] = result

    def _rows(self, dtype: Any, count: int) -> tuple[list[Array], Array]:
        """Return an array for each host and one for the result; cached by dtype and size."""
        found = self._kept.get((dtype, count))
        if found is None:
            size_bytes = count * dtype.itemsize
            each = -(-size_bytes // _LINE) * _LINE
            room = np.empty((self._hosts + 1) * each + _LINE, np.uint8)
            start = -room.ctypes.data % _LINE
            starts = [start + row * each for row in range(self._hosts + 1)]
            rows = [room[at : at + size_bytes].view(dtype) for at in starts]
            found = rows[:-1], rows[-1]
            if len(self._kept) < _KEPT:
                self._kept[dtype, count] = found
        return found


class _Chunk:
    """The state of one chunk in flight."""

    def __init__(self, target: Array, width: int, pieces: int, results_bytes: int) -> None:
        self.share: Array | None = None  # This host's own share.
        self.target, self.width = target, width  # The width is the elements of a host's part.
        self.left = pieces  # Pieces that are still to be combined.
        self.bytes_left = results_bytes  # Bytes that are still to be received from other hosts.
        # For each link, the number of records posted up to the end of this chunk.
        self.marks: list[int] = []


class Chunks(NamedTuple):
    """The chunks of an array: elements of a host's part of each, and how many may be in flight."""

    widths: list[int]
    depth: int


class Reduction:
    """Combines arrays over hosts after the ranks of each host have combined theirs; a `Work`."""

    def __init__(
        self,
        links: Links,
        host: int,
        hosts: int,
        size: int,
        op: str,
        dtype: Any,
        chunks: Chunks,
        results: bool = True,
    ) -> None:
        self._links, self._host, self._hosts, self._size, self._op = links, host, hosts, size, op
        self._dtype, self._item = dtype, dtype.itemsize
        widths, depth = self._widths, self._depth = chunks
        self._results = results
        self._piece = _piece_of(widths[0], self._item)  # Elements per record.
        self._pieces = [-(-width // self._piece) for width in widths]
        room = max(widths)
        # Received shares, for each chunk in flight and each other host.
        self._shares: Array = np.empty((min(depth, len(widths)), hosts, room), dtype)
        self._bytes = as_bytes(self._shares)
        self._arrived = [np.zeros(count, np.int32) for count in self._pieces]
        self._chunks: dict[int, _Chunk] = {}
        self._targets: dict[int, memoryview] = {}
        self._combined = [0] * len(widths)  # Number of combined pieces per chunk.
        self._reach = {link.to.host: 0 for link in links.all}  # Bytes received from each host.
        others = sum(widths) * self._item
        self._whole = others * 2 if results else others

    def owes(self, host: int) -> bool:
        return bool(self._reach[host] < self._whole)

    def begin(self, chunk: int, source: Array, target: Array) -> None:
        """Begin a chunk and send its shares; ``target``, which may be ``source``, gets results."""
        self.expect(chunk, target)
        width = self._widths[chunk]
        for link in self._links.all:
            self.send_share(chunk, link.to.host, source[link.to.host * width :][:width])
        self.own(chunk, source[self._host * width :][:width])

    def expect(self, chunk: int, target: Array) -> None:
        """Set the memory for the results of a chunk."""
        width = self._widths[chunk]
        results_bytes = width * self._item * (self._hosts - 1) if self._results else 0
        self._chunks[chunk] = _Chunk(target, width, self._pieces[chunk], results_bytes)
        self._targets[chunk] = as_bytes(target)

    def send_share(self, chunk: int, host: int, share: Array) -> None:
        for link in self._links.all:
            if link.to.host == host:
                self._links.post(link, SHARE, chunk, 0, as_bytes(share), self._piece * self._item)

    def own(self, chunk: int, share: Array) -> None:
        """Set this host's own share, and combine the pieces that have already arrived."""
        self._chunks[chunk].share = share
        for piece in np.flatnonzero(self._arrived[chunk] == self._hosts - 1):
            self._combine(chunk, int(piece))

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        if chunk >= len(self._widths) or offset % self._item or length % self._item:
            return None
        width_bytes = self._widths[chunk] * self._item
        if offset + length > width_bytes:
            return None
        if kind == RESULT:
            target = self._targets.get(chunk)
            if target is None or not self._results:
                return None
            return target[host * width_bytes + offset :][:length]
        before = chunk - self._depth
        if before >= 0 and self._combined[before] < self._pieces[before]:
            return None
        if offset % (self._piece * self._item) or not length:
            return None
        row = chunk % len(self._shares) * self._hosts + host
        return self._bytes[row * self._shares.shape[2] * self._item + offset :][:length]

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        self._reach[host] += length
        if kind == RESULT:
            self._chunks[chunk].bytes_left -= length
            return
        piece = offset // (self._piece * self._item)
        self._arrived[chunk][piece] += 1
        state = self._chunks.get(chunk)
        if self._arrived[chunk][piece] == self._hosts - 1 and state is not None and state.share is not None:
            self._combine(chunk, piece)

    def _combine(self, chunk: int, piece: int) -> None:
        state = self._chunks[chunk]
        at = slice(piece * self._piece, min((piece + 1) * self._piece, state.width))
        shares = [*self._shares[chunk % len(self._shares), :, at]]
        shares[self._host] = cast(Array, state.share)[at]
        start = self._host * state.width if self._results else 0
        out = state.target[start + at.start : start + at.stop]
        combined(self._op, shares, self._host, self._size, out)
        self._combined[chunk] += 1
        state.left -= 1
        if self._results:
            for link in self._links.all:
                start_bytes = at.start * self._item
                self._links.post(link, RESULT, chunk, start_bytes, as_bytes(out), out.nbytes)
        if state.left == 0:
            state.marks = [link.stream.posted for link in self._links.all]

    def ended(self, chunk: int) -> bool:
        """Return whether a chunk is complete here and all data for other hosts are sent."""
        state = self._chunks.get(chunk)
        if state is None or state.left or state.bytes_left:
            return False
        return all(link.stream.sent >= mark for link, mark in zip(self._links.all, state.marks))

    def forget(self, chunk: int) -> None:
        del self._chunks[chunk], self._targets[chunk]


class ChunkedAllGather:
    """Sends this host's block to all others and receives theirs, in chunks, a part by each lane.

    ``rails`` is the number of lanes and ``rail`` is this rank's lane, if any. The lengths of
    ``blocks``, which hold uint8, are multiples of 64 times ``rails``.
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
        """Yield the host, the chunk and this lane's part of it, for each block with this chunk."""
        for host, block in self._blocks.items():
            whole = block[number * self._width : (number + 1) * self._width]
            if len(whole):
                each = len(whole) // self._rails
                yield host, whole, whole[self._rail * each :][:each]

    def send(self, number: int) -> None:
        for host, whole, part in self.chunk(number):
            if host == self._host:
                start = number * self._width + self._rail * (len(whole) // self._rails)
                for link in self._links.all:
                    self._links.post(link, RESULT, 0, start, as_bytes(part), MAX_PAYLOAD_BYTES)
        self._links.pump()

    def _until(self, host: int, number: int) -> int:
        """Return the bytes received from a host when its part of this chunk is complete."""
        return min((number + 1) * self._width, len(self._blocks[host])) // self._rails

    def has(self, host: int, number: int) -> bool:
        return self._came[host] >= self._until(host, number)

    def owes(self, host: int) -> bool:
        return host in self._came and self._came[host] * self._rails < len(self._blocks[host])

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        block = self._memory.get(host)
        if kind != RESULT or chunk or block is None or offset + length > len(block):
            return None
        return block[offset : offset + length]

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        self._came[host] += length
