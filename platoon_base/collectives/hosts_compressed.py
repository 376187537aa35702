"""All-reduces of gradients that are compressed between hosts, with error feedback.

As in `platoon_base.collectives.hosts_parts` each host combines a part; shares and results are
encoded::

    v[g, h]   := share[g, h] + e[g, h]                  for g != h; the own share is exact
    s[g, h]   := decode(encode(v[g, h]))
    e[g, h]   := v[g, h] - s[g, h]                      kept by host g
    w[h]      := op(s[0, h], ..., share[h, h], ..., s[H-1, h]) + e[h, h]
    result[h] := decode(encode(w[h]))                   on all hosts, including host h
    e[h, h]   := w[h] - result[h]                       kept by host h

All hosts have the same bits. Seide et al. 2014; Tang et al. 2021 (arXiv 2102.02888).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from platoon_base.collectives.base import canonical_op
from platoon_base.collectives.hosts_links import RESULT, SHARE, Links, as_bytes
from platoon_base.collectives.hosts_parts import Chunks, Reduction, combined, silent
from platoon_base.compression.codecs import Codec, ErrorFeedback, TopK, codec_of
from platoon_base.compression.packing import decode_and_keep
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import World

__all__ = ["CompressedReduction", "Compression", "gradient_codec", "is_compressible"]

Array = np.ndarray[Any, Any]


def gradient_codec(world: World) -> Codec | None:
    """Return the codec of averaged gradients between the hosts of a job; None if they are exact."""
    # `TopK` sends parts of a gradient late, when they are of an old model, and training may
    # diverge. Lin et al. 2018 correct for that within the optimizer.
    codec = codec_of(world.compression) if world.several else None
    return None if isinstance(codec, TopK) else codec


def is_compressible(dtype: Any, op: str) -> bool:
    try:
        return bool(np.dtype(dtype).kind == "f" and canonical_op(op) in ("sum", "mean"))
    except ConfigurationError:
        return False


class Compression(NamedTuple):
    """How the data of one call are compressed; ``key`` identifies the residual in ``feedback``."""

    codec: Codec
    feedback: ErrorFeedback
    key: Any


class _Records:
    """The layout of the pieces of parts of chunks, as elements and as encoded records."""

    def __init__(self, codec: Codec, piece: int, widths: list[int]) -> None:
        self._codec, self._piece, self._widths = codec, piece, widths
        self.stride = -(-codec.nbytes(piece) // 8) * 8  # Bytes between the starts of records.
        self.counts = [-(-width // piece) for width in widths]
        self.part_bytes = [
            sum(self.nbytes(chunk, number) for number in range(count)) for chunk, count in enumerate(self.counts)
        ]

    def at(self, chunk: int, number: int) -> slice:
        return slice(number * self._piece, min((number + 1) * self._piece, self._widths[chunk]))

    def nbytes(self, chunk: int, number: int) -> int:
        at = self.at(chunk, number)
        return self._codec.nbytes(at.stop - at.start)

    def room(self, hosts: int, depth: int) -> Array:
        """Return memory for records of shares and results, by chunk in flight and host."""
        return np.empty((2, min(depth, len(self._widths)), hosts, max(self.counts) * self.stride), np.uint8)

    def data(self, memory: Array, kind: int, chunk: int, host: int, number: int) -> Array:
        row: Array = memory[int(kind == RESULT), chunk % memory.shape[1], host]
        return row[number * self.stride :][: self.nbytes(chunk, number)]


class CompressedReduction(Reduction):
    """A `Reduction` with encoded data, record by record; ``dtype`` is float32 or float64."""

    def __init__(
        self,
        compression: Compression,
        links: Links,
        host: int,
        hosts: int,
        size: int,
        op: str,
        dtype: Any,
        chunks: Chunks,
    ) -> None:
        super().__init__(links, host, hosts, size, op, dtype, chunks)
        codec = self._codec = compression.codec
        self._starts = np.cumsum([0, *(width * hosts for width in self._widths)]).tolist()
        self._residual = compression.feedback.residual(compression.key, self._starts[-1], dtype)
        self._records = _Records(codec, self._piece, self._widths)
        self._sent, self._received = (self._records.room(hosts, self._depth) for _ in range(2))
        self._decoded = np.empty((hosts + 1, self._piece), dtype)
        self._whole = 2 * sum(self._records.part_bytes)

    def _kept(self, chunk: int, host: int, at: slice) -> Array:
        start = self._starts[chunk] + host * self._widths[chunk]
        return self._residual[start + at.start : start + at.stop]

    def _encode(self, values: Array, data: Array, out: Array, kept: Array) -> None:
        with silent():
            values = values + kept
            self._codec.encode(values, data)
            decode_and_keep(self._codec, data, values, out, kept)

    def begin(self, chunk: int, source: Array, target: Array) -> None:
        self.expect(chunk, target)
        self._chunks[chunk].bytes_left = self._records.part_bytes[chunk] * (self._hosts - 1)
        width = self._widths[chunk]
        for link in self._links.all:
            self.send_share(chunk, link.to.host, source[link.to.host * width :][:width])
        self.own(chunk, source[self._host * width :][:width])

    def send_share(self, chunk: int, host: int, share: Array) -> None:
        (link,) = (link for link in self._links.all if link.to.host == host)
        for piece in range(self._pieces[chunk]):
            at, data = self._records.at(chunk, piece), self._records.data(self._sent, SHARE, chunk, host, piece)
            self._encode(share[at], data, self._decoded[0, : at.stop - at.start], self._kept(chunk, host, at))
            self._links.post(link, SHARE, chunk, piece * self._records.stride, as_bytes(data), len(data))
            self._links.pump()

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        piece = offset // self._records.stride
        if chunk >= len(self._widths) or offset % self._records.stride or piece >= self._pieces[chunk]:
            return None
        data = self._records.data(self._received, kind, chunk, host, piece)
        before = chunk - self._depth
        late = before >= 0 and self._combined[before] < self._pieces[before]
        if length != len(data) or (chunk not in self._targets if kind == RESULT else late):
            return None
        return as_bytes(data)

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        piece = offset // self._records.stride
        if kind == RESULT:
            self._reach[host] += length
            state, at = self._chunks[chunk], self._records.at(chunk, piece)
            out = state.target[host * state.width :][at]
            self._codec.decode(self._records.data(self._received, RESULT, chunk, host, piece), out)
            state.bytes_left -= length
        else:
            super().done(host, kind, chunk, piece * self._piece * self._item, length)

    def _combine(self, chunk: int, piece: int) -> None:
        state, at = self._chunks[chunk], self._records.at(chunk, piece)
        *shares, total = self._decoded[:, : at.stop - at.start]
        for link in self._links.all:
            host = link.to.host
            self._codec.decode(self._records.data(self._received, SHARE, chunk, host, piece), shares[host])
        shares[self._host] = state.share[at]  # type: ignore[index]
        combined(self._op, shares, self._host, self._size, total)
        data = self._records.data(self._sent, RESULT, chunk, self._host, piece)
        self._encode(total, data, state.target[self._host * state.width :][at], self._kept(chunk, self._host, at))
        self._combined[chunk] += 1
        state.left -= 1
        for link in self._links.all:
            self._links.post(link, RESULT, chunk, piece * self._records.stride, as_bytes(data), len(data))
        if state.left == 0:
            state.marks = [link.stream.posted for link in self._links.all]
