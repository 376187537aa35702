"""How a group over several hosts combines arrays: all-reduces and reduce-scatters of one rank."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np

from platoon_base.collectives.host_links import HEADER_BYTES, Link, as_bytes
from platoon_base.collectives.host_reduction import Chunks, Reduction, combined, finished
from platoon_base.collectives.hosts_libraries import takes
from platoon_base.collectives.hosts_waits import HostsWaits, Steps, owes_head

__all__ = ["CHUNK_BYTES", "NO_BYTES", "SMALL_BYTES", "HostsReducing", "is_wide"]

Array = np.ndarray[Any, Any]

SMALL_BYTES = 1 << 16  # up to here the first rank of a host sends an array whole: there is but one step
MOST_SMALL_BYTES = 1 << 18  # that it sends, to all hosts
CHUNK_BYTES, SHORTEST_CHUNK = 1 << 22, 1 << 20  # of the whole array
CHUNKS = 8  # of an array that is not large: the links wait for the first, and the ranks of the host for the last
DEPTH = 4  # chunks that are begun at a time
SHORTEST_PIECE, LONGEST_PIECE = 1 << 15, 1 << 18  # bytes of a record
NO_BYTES = np.zeros(0, np.uint8)
_LIBRARY_S, _LIBRARY_BYTES_PER_S = 10.0, 1e6  # for which, and at which rate, a library is thought to move data
_ALIGN = 16  # elements


class HostsReducing(HostsWaits):
    """Calls that combine."""

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes <= SMALL_BYTES and size_bytes * (self._hosts - 1) <= MOST_SMALL_BYTES

    def _small(self, array: Array, out: Array, op: str) -> Steps:
        """Combine a small array: on each host, between the first ranks of the hosts, and back."""
        yield from self._inside("all_reduce", "sum" if op == "mean" else op, array, out)
        if self._index == 0:
            self._links.announce(as_bytes(out))
            yield from self._heads()
            self._combine_heads(out, op)
        yield from self._inside("broadcast", "sum", out, out)

    def _combine_heads(self, out: Array, op: str) -> None:
        """Combine this host's array, in ``out``, with those that came with the heads of all other hosts."""
        shares, result = self._desk.rows(out.dtype, len(out))
        shares[self._host][...] = out
        for link in self._links.all:
            shares[link.to.host][...] = np.frombuffer(link.head or b"", out.dtype, offset=HEADER_BYTES)
        combined(op, shares, -1, self._size, result)
        out[...] = result

    def _all_reduce(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        if is_wide(array.dtype, op):
            wide = array.astype(np.float32)
            yield from self._reduced(wide, wide, op)
            with np.errstate(all="ignore"):
                out[...] = wide
        else:
            yield from self._reduced(array, out, op)

    def _reduced(self, array: Array, out: Array, op: str) -> Steps:
        if self._is_small(array.nbytes):
            yield from self._small(array, out, op)
            return
        if self._by_library and takes(array.dtype, op):
            yield from self._by_the_library(array, out, op)
            return
        inner = "sum" if op == "mean" else op
        body = len(array) // self._unit * self._unit
        rest = out[body:]
        yield from self._inside("all_reduce", inner, array[body:], rest)
        if self._has_rail:
            self._links.announce(as_bytes(rest))
        if body:
            yield from self._chunks(array[:body], out[:body], op, inner)
        yield from self._heads()
        if len(rest) and self._has_rail:
            self._combine_heads(rest, op)
        if not self._even and len(rest):
            yield from self._inside("broadcast", "sum", rest, rest)

    def _by_the_library(self, array: Array, out: Array, op: str) -> Steps:
        """Combine an array on each host, let a library add those of all hosts, and give the result to all ranks."""
        self.patient_until = time.monotonic() + _LIBRARY_S + array.nbytes / _LIBRARY_BYTES_PER_S
        if self._library is None:
            yield from self._inside("all_reduce", "sum", array, out)
        else:
            own = self._memory_for_library(out.dtype, len(out))
            yield from self._inside("all_reduce", "sum", array, own)
            self._links.announce(b"")
            yield from self._heads()  # else it might add arrays of two calls
            yield from self._added(self._library, own)
            finished(own, op, self._size)
            np.copyto(out, own)
        yield from self._inside("broadcast", "sum", out, out)
        self.patient_until = 0.0

    def _memory_for_library(self, dtype: Any, count: int) -> Array:
        """Return memory that the user has not: after a call has failed a library may still write there."""
        if self._adding is None or self._adding.dtype != dtype or len(self._adding) != count:
            self._adding = np.empty(count, dtype)
        return self._adding

    def _chunks(self, array: Array, out: Array, op: str, inner: str) -> Steps:
        """Combine a large array, whose length has a factor of rails times hosts."""
        rails, hosts, item, n, unit = self._rails, self._hosts, array.itemsize, len(array), self._unit
        chunk_bytes = min(max(array.nbytes // CHUNKS, SHORTEST_CHUNK), CHUNK_BYTES)
        most = max(chunk_bytes // item // unit * unit, unit)
        count = -(-n // most)
        width = -(-n // count // unit) * unit
        bounds = [(start, min(start + width, n)) for start in range(0, n, width)]
        count, depth = len(bounds), min(DEPTH, len(bounds))
        share = width // rails // hosts
        reduction = None
        if self._has_rail:
            widths = [(stop - start) // rails // hosts for start, stop in bounds]
            chunks = Chunks(widths, _piece(share, item), depth)
            reduction = Reduction(self._links, self._host, hosts, self._size, op, array.dtype, chunks, True)
            self._links.work = reduction
        parts = [np.empty(width // rails, array.dtype) for _ in range(depth)] if self._even and rails > 1 else []
        for turn in range(count + depth - 1):
            if turn < count:
                start, stop = bounds[turn]
                yield from self._to_links(turn, array[start:stop], out[start:stop], parts, inner, reduction)
            ready = turn - depth + 1
            if ready >= 0:
                start, stop = bounds[ready]
                if reduction is not None:
                    yield from self._wait(lambda: reduction.ended(ready), _owes_data(reduction))  # noqa: B023
                    reduction.forget(ready)
                yield from self._from_links(out[start:stop], parts[ready % depth] if parts else None)
        self._links.work = None

    def _to_links(
        self, chunk: int, array: Array, out: Array, parts: list[Array], inner: str, reduction: Reduction | None
    ) -> Steps:
        """Combine a chunk on this host, and let the links begin with this rank's part."""
        each = len(array) // self._rails
        source = target = out[self._index * each :][:each]
        if parts:
            source = target = parts[chunk % len(parts)][:each]
            yield from self._inside("reduce_scatter", inner, array, target)
        elif self._here == 1:
            source = array
        else:
            yield from self._inside("all_reduce", inner, array, out)
        if reduction is not None:
            reduction.begin(chunk, source, target)
            self._links.pump()

    def _from_links(self, out: Array, part: Array | None) -> Steps:
        """Give a chunk, which is complete in parts, to all ranks of this host."""
        each = len(out) // self._rails
        if part is not None:
            yield from self._inside("all_gather", "sum", part[:each], out)
        elif not self._even:
            for rail in range(self._rails):
                piece = out[rail * each :][:each]
                yield from self._inside("broadcast", "sum", piece, piece, rail)

    def _reduce_scatter(self, header: Array, array: Array, out: Array, op: str, root: int) -> Steps:
        narrow = out
        if is_wide(array.dtype, op):
            array, out = array.astype(np.float32), np.empty(len(out), np.float32)
        each = len(array) // self._size
        if min(self._workers) < max(self._workers) or self._is_small(array.nbytes):
            whole = np.empty_like(array)
            yield from self._reduced(array, whole, op)
            own = self._firsts[self._host] + self._index
            out[...] = whole[own * each :][:each]
        else:
            yield from self._scattered(array, out, op, each)
        if narrow is not out:
            with np.errstate(all="ignore"):
                narrow[...] = out

    def _scattered(self, array: Array, out: Array, op: str, each: int) -> Steps:
        """Combine for each host what its ranks keep, each rank's part by its own rail."""
        inner = "sum" if op == "mean" else op
        links = self._links
        chunks = Chunks([each], _piece(each, array.itemsize), 1)
        reduction = Reduction(links, self._host, self._hosts, self._size, op, array.dtype, chunks, False)
        reduction.expect(0, out)
        yield from self._inside("barrier", "sum", NO_BYTES, NO_BYTES)
        links.work = reduction
        links.announce(b"")
        for step in range(1, self._hosts + 1):
            host = (self._host + step) % self._hosts  # its own last
            start = self._firsts[host] * each
            share = np.empty(each, array.dtype)
            yield from self._inside("reduce_scatter", inner, array[start:][: each * self._here], share)
            if host == self._host:
                reduction.own(0, share)
            else:
                reduction.send_share(0, host, share)
            links.pump()
        yield from self._wait(lambda: reduction.ended(0), _owes_data(reduction))
        yield from self._heads()
        links.work = None


def is_wide(dtype: Any, op: str) -> bool:
    """Tell whether an operation is done in float32."""
    return bool(dtype == np.float16 and op in ("sum", "prod", "mean"))


def _owes_data(reduction: Reduction) -> Callable[[Link], bool]:
    return lambda link: owes_head(link) or reduction.owes(link.to.host)


def _piece(share: int, item: int) -> int:
    """Choose the elements of a record, for parts of so many: a few each, that one follows the other."""
    size = min(max(share * item // 4, SHORTEST_PIECE), LONGEST_PIECE)
    return max(size // item // _ALIGN * _ALIGN, _ALIGN)
