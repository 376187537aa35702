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

from typing import Any

import numpy as np

from platoon_base.collectives.base import canonical_op
from platoon_base.collectives.hosts_links import RESULT, SHARE
from platoon_base.collectives.hosts_parts import Combine, PlainPieces, silent
from platoon_base.compression.codecs import Codec, ErrorFeedback, TopK, codec_of
from platoon_base.compression.packing import decode_and_keep
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import World


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


class EncodedPieces(PlainPieces):
    """Pieces that are encoded, with the errors of earlier calls; ``key`` identifies these."""

    encodes = True

    def __init__(
        self, codec: Codec, feedback: ErrorFeedback, key: Any,
        piece: int, widths: list[int], hosts: int, depth: int, dtype: Any,
    ) -> None:  # fmt: skip
        self._codec = codec
        super().__init__(piece, widths, 0, depth, dtype)
        self.stride = -(-codec.nbytes(piece) // 8) * 8
        self._starts = np.cumsum([0, *(width * hosts for width in widths)]).tolist()
        self._residual = feedback.residual(key, self._starts[-1], dtype)
        # Sent and received shares and results, by chunk in flight and host.
        rows = min(depth, len(widths)), hosts, max(map(self.count, range(len(widths)))) * self.stride
        self._sent, self._received = (np.empty((2, *rows), np.uint8) for _ in range(2))
        self._decoded = np.empty((hosts + 1, piece), dtype)

    def nbytes(self, elements: int) -> int:
        return self._codec.nbytes(elements)

    def _record(self, memory: Array, kind: int, chunk: int, number: int, host: int) -> Array:
        at, row = self.at(chunk, number), memory[int(kind == RESULT), chunk % memory.shape[1], host]
        record: Array = row[number * self.stride :][: self.nbytes(at.stop - at.start)]
        return record

    def _encode(self, kind: int, chunk: int, number: int, host: int, values: Array, out: Array) -> Array:
        """Encode values with the error that is kept for a host; ``out`` gets what others decode."""
        at, record = self.at(chunk, number), self._record(self._sent, kind, chunk, number, host)
        start = self._starts[chunk] + host * self._widths[chunk]
        kept = self._residual[start + at.start : start + at.stop]
        with silent():
            values = values + kept
            self._codec.encode(values, record)
            decode_and_keep(self._codec, record, values, out, kept)
        return record

    def share(self, chunk: int, number: int, host: int, values: Array) -> Array:
        return self._encode(SHARE, chunk, number, host, values, self._decoded[0, : len(values)])

    def place(self, kind: int, chunk: int, number: int, host: int, target: Array | None) -> Array:
        return self._record(self._received, kind, chunk, number, host)

    def shares(self, chunk: int, number: int, own: int, share: Array) -> list[Array]:
        shares = [*self._decoded[:-1, : len(share)]]
        for host, decoded in enumerate(shares):
            if host != own:
                self._codec.decode(self._record(self._received, SHARE, chunk, number, host), decoded)
        shares[own] = share
        return shares

    def result(self, chunk: int, number: int, host: int, shares: list[Array], out: Array, combine: Combine) -> Array:
        total = self._decoded[-1, : len(out)]
        combine(shares, total)
        return self._encode(RESULT, chunk, number, host, total, out)

    def take(self, chunk: int, number: int, host: int, target: Array) -> None:
        out = target[host * self._widths[chunk] :][self.at(chunk, number)]
        self._codec.decode(self._record(self._received, RESULT, chunk, number, host), out)
