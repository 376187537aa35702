"""The data of one call that a rank's links exchange between hosts, and their combination.

In a broadcast or an all-gather, arrays of one host are sent to all others. In an all-reduce, each
host combines a part of the whole::

    share[g, h]  := the part that host h combines, of the array that the ranks of host g combined
    result[h]    := op(share[0, h], ..., share[H-1, h])

A host sends every other host its share and its result: 2 (H-1)/H of the array, which is the
minimum, in two steps for any number of hosts. Chunks do not wait for earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from platoon_base.collectives.host_exchange import REDUCERS, toward_zero
from platoon_base.collectives.hosts_links import RESULT, SHARE, Link, Links, as_bytes
from platoon_base.dtypes import Array
from platoon_base.links.stream import MAX_PAYLOAD_BYTES

Combine = Callable[[list[Array], Array], None]

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


class PlainPieces:
    """Pieces of parts that are sent as they are; see `Reduction`."""

    encodes = False

    def __init__(self, piece: int, widths: list[int], hosts: int, depth: int, dtype: Any) -> None:
        self._piece, self._widths, self._item = piece, widths, dtype.itemsize
        self.stride = self.nbytes(piece)  # Bytes between the starts of records.
        # Received shares, for each chunk in flight and each host.
        self._shares: Array = np.empty((min(depth, len(widths)), hosts, max(widths)), dtype)

    def at(self, chunk: int, number: int) -> slice:
        """Return the elements of a piece of a part."""
        return slice(number * self._piece, min((number + 1) * self._piece, self._widths[chunk]))

    def nbytes(self, elements: int) -> int:
        """Return the size of the record of so many elements."""
        return elements * int(self._item)

    def count(self, chunk: int) -> int:
        return -(-self._widths[chunk] // self._piece)

    def part_bytes(self, chunk: int) -> int:
        """Return the size of all records of a part."""
        rests = (self.at(chunk, number) for number in range(self.count(chunk)))
        return sum(self.nbytes(at.stop - at.start) for at in rests)

    def share(self, chunk: int, number: int, host: int, values: Array) -> Array:
        """Return the record of a piece for the host that combines it."""
        return values

    def place(self, kind: int, chunk: int, number: int, host: int, target: Array | None) -> Array:
        """Return the memory for the record from a host; ``target`` is for the part's results."""
        at = self.at(chunk, number)
        if kind == RESULT and target is not None:
            return target[host * self._widths[chunk] :][at]
        row: Array = self._shares[chunk % len(self._shares), host, at]
        return row

    def shares(self, chunk: int, number: int, own: int, share: Array) -> list[Array]:
        """Return the pieces of all hosts, to be combined in their order."""
        shares = [*self._shares[chunk % len(self._shares), :, self.at(chunk, number)]]
        shares[own] = share
        return shares

    def result(self, chunk: int, number: int, host: int, shares: list[Array], out: Array, combine: Combine) -> Array:
        """Combine pieces into ``out`` and return the record of the result."""
        combine(shares, out)
        return out

    def take(self, chunk: int, number: int, host: int, target: Array) -> None:
        """Do nothing: the result of another host has been received in its place."""


class Reduction:
    """Combines arrays over hosts after the ranks of each host have combined theirs; a `Work`.

    ``pieces`` makes the form of the pieces that are sent, `PlainPieces` by default.
    """

    def __init__(
        self,
        links: Links,
        host: int,
        hosts: int,
        size: int,
        op: str,
        dtype: Any,
        chunks: Chunks,
        pieces: Callable[..., PlainPieces] = PlainPieces,
    ) -> None:
        self._links, self._host, self._hosts, self._size, self._op = links, host, hosts, size, op
        widths, depth = self._widths, self._depth = chunks
        self._pieces = pieces(_piece_of(widths[0], dtype.itemsize), widths, hosts, depth, dtype)
        self._arrived = [np.zeros(self._pieces.count(chunk), np.int32) for chunk in range(len(widths))]
        self._chunks: dict[int, _Chunk] = {}
        self._combined = [0] * len(widths)  # Number of combined pieces per chunk.
        self._reach = {link.to.host: 0 for link in links.all}  # Bytes received from each host.
        self._part_bytes = [self._pieces.part_bytes(chunk) for chunk in range(len(widths))]
        self._whole = 2 * sum(self._part_bytes)  # Bytes of shares and results.

    def owes(self, host: int) -> bool:
        return bool(self._reach[host] < self._whole)

    def begin(self, chunk: int, source: Array, target: Array) -> None:
        """Begin a chunk and send its shares; ``target``, which may be ``source``, gets results."""
        results_bytes = self._part_bytes[chunk] * (self._hosts - 1)
        width = self._widths[chunk]
        state = self._chunks[chunk] = _Chunk(target, width, len(self._arrived[chunk]), results_bytes)
        for link in self._links.all:
            self._send_share(chunk, link, source[link.to.host * width :][:width])
        state.share = source[self._host * width :][:width]
        # Combine the pieces that have already arrived.
        for number in np.flatnonzero(self._arrived[chunk] == self._hosts - 1):
            self._combine(chunk, int(number))

    def _send_share(self, chunk: int, link: Link, share: Array) -> None:
        for number in range(len(self._arrived[chunk])):
            record = self._pieces.share(chunk, number, link.to.host, share[self._pieces.at(chunk, number)])
            self._post([link], SHARE, chunk, number, record)
            if self._pieces.encodes:  # Send while the next piece is encoded.
                self._links.pump()

    def _post(self, links: list[Link], kind: int, chunk: int, number: int, record: Array) -> None:
        data = as_bytes(record)
        for link in links:
            self._links.post(link, kind, chunk, number * self._pieces.stride, data, len(data))

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        number, rest = divmod(offset, self._pieces.stride)
        if chunk >= len(self._widths) or rest or number >= len(self._arrived[chunk]):
            return None
        state, before = self._chunks.get(chunk), chunk - self._depth
        if kind == RESULT:
            if state is None:
                return None
        elif before >= 0 and self._combined[before] < len(self._arrived[before]):
            return None
        place = as_bytes(self._pieces.place(kind, chunk, number, host, None if state is None else state.target))
        return place if len(place) == length else None

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        self._reach[host] += length
        number, state = offset // self._pieces.stride, self._chunks.get(chunk)
        if kind == RESULT:
            if state is not None:
                self._pieces.take(chunk, number, host, state.target)
                state.bytes_left -= length
            return
        self._arrived[chunk][number] += 1
        if self._arrived[chunk][number] == self._hosts - 1 and state is not None and state.share is not None:
            self._combine(chunk, number)

    def _combine(self, chunk: int, number: int) -> None:
        state, at = self._chunks[chunk], self._pieces.at(chunk, number)
        shares = self._pieces.shares(chunk, number, self._host, cast(Array, state.share)[at])
        start = self._host * state.width
        out = state.target[start + at.start : start + at.stop]
        record = self._pieces.result(chunk, number, self._host, shares, out, self._combine_arrays)
        self._combined[chunk] += 1
        state.left -= 1
        self._post(self._links.all, RESULT, chunk, number, record)
        if state.left == 0:
            state.marks = [link.stream.posted for link in self._links.all]

    def _combine_arrays(self, shares: list[Array], out: Array) -> None:
        combined(self._op, shares, self._host, self._size, out)

    def ended(self, chunk: int) -> bool:
        """Return whether a chunk is complete here and all data for other hosts are sent."""
        state = self._chunks.get(chunk)
        if state is None or state.left or state.bytes_left:
            return False
        return all(link.stream.sent >= mark for link, mark in zip(self._links.all, state.marks))

    def forget(self, chunk: int) -> None:
        del self._chunks[chunk]


class ChunkedAllGather:
    """Sends this host's block to all others and receives theirs, in chunks, a part by each lane.

    ``lane`` is this rank's lane, if it is less than ``lanes``. The lengths of
    ``blocks``, which hold uint8, are multiples of 64 times ``lanes``.
    """

    def __init__(
        self, links: Links, host: int, lanes: int, lane: int, blocks: Mapping[int, Array], chunk_bytes: int
    ) -> None:
        self._links, self._host, self._lanes, self._lane = links, host, lanes, lane
        self._blocks = blocks
        self._width = max(chunk_bytes // (lanes * 64), 1) * lanes * 64
        longest = max(map(len, blocks.values()))
        self.count = -(-longest // self._width)
        self._came = dict.fromkeys(blocks, 0)
        self._memory = {h: as_bytes(block) for h, block in blocks.items() if h != host}

    def chunk(self, number: int) -> Iterator[tuple[int, Array, Array]]:
        """Yield the host, the chunk and this lane's part of it, for each block with this chunk."""
        for host, block in self._blocks.items():
            whole = block[number * self._width : (number + 1) * self._width]
            if len(whole):
                each = len(whole) // self._lanes
                yield host, whole, whole[self._lane * each :][:each]

    def send(self, number: int) -> None:
        for host, whole, part in self.chunk(number):
            if host == self._host:
                start = number * self._width + self._lane * (len(whole) // self._lanes)
                for link in self._links.all:
                    self._links.post(link, RESULT, 0, start, as_bytes(part), MAX_PAYLOAD_BYTES)
        self._links.pump()

    def _until(self, host: int, number: int) -> int:
        """Return the bytes received from a host when its part of this chunk is complete."""
        return min((number + 1) * self._width, len(self._blocks[host])) // self._lanes

    def has(self, host: int, number: int) -> bool:
        return self._came[host] >= self._until(host, number)

    def owes(self, host: int) -> bool:
        return host in self._came and self._came[host] * self._lanes < len(self._blocks[host])

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        block = self._memory.get(host)
        if kind != RESULT or chunk or block is None or offset + length > len(block):
            return None
        return block[offset : offset + length]

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        self._came[host] += length
