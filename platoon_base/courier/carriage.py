"""Contributions to a round between couriers: unchanged, or compressed with error feedback."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from platoon_base.centers.across_hosts import AcrossHosts, Overwrites, RoundTotals
from platoon_base.centers.stripes import copy_all, cut
from platoon_base.compression.codecs import Codec
from platoon_base.compression.packing import Packing, Residuals
from platoon_base.courier.conversation import TotalsBuffer

__all__ = ["Carriage", "CompressedCarriage", "PlainCarriage"]

Array = np.ndarray[Any, Any]


class Carriage(Protocol):
    """Turns contributions into the bytes that are sent, and back."""

    def buffer(self) -> TotalsBuffer:
        """Return memory for received contributions."""
        ...

    def seal(self, own: RoundTotals) -> memoryview:
        """Return this host's contributions as bytes; ``own`` becomes what other hosts decode."""
        ...

    def open(self, received: Any) -> RoundTotals:
        """Return the contributions in a buffer; the caller owns them until `release`."""
        ...

    def release(self, totals: RoundTotals) -> None:
        """Reuse the memory of contributions."""
        ...

    def renew(self) -> None:
        """Do not reuse the memory of `seal`: it is still to be sent."""
        ...

    def has_not_counted(self, number: int) -> None:
        """Restore the state before round ``number``, which continued without this host."""
        ...


class PlainCarriage:
    """Sends contributions unchanged."""

    def __init__(self, rounds: AcrossHosts) -> None:
        self._rounds = rounds
        self._spare: list[RoundTotals] = []

    def buffer(self) -> RoundTotals:
        return self._spare.pop() if self._spare else self._rounds.new_totals()

    def seal(self, own: RoundTotals) -> memoryview:
        return own.buffer

    def open(self, received: RoundTotals) -> RoundTotals:
        return received

    def release(self, totals: RoundTotals) -> None:
        self._spare.append(totals)

    def renew(self) -> None:
        """Do nothing: the memory is that of the contributions."""

    def has_not_counted(self, number: int) -> None:
        """Do nothing: contributions are sent whole."""


class _PackedTotals:
    """The head of `RoundTotals` and the packed arrays, in one buffer."""

    def __init__(self, words: int, nbytes: int) -> None:
        whole = np.zeros(words + nbytes // 8, np.float64)
        self.head, self.data = whole[:words], whole[words:].view(np.uint8)
        self.buffer = memoryview(whole.view(np.uint8))  # type: ignore[arg-type]

    @property
    def number(self) -> int:
        return int(self.head[0])


class CompressedCarriage:
    """Sends packed contributions, with error feedback.

    A host adds its residual to its contributions, packs them, and uses what the other hosts will
    unpack as its own part of the sum: all hosts add the same bits. The rest is the residual of the
    next round. Stripes without a contribution of its workers add nothing and keep their residual.
    The stamp of ``overwrites`` shows when residuals belong to overwritten values.
    """

    def __init__(self, rounds: AcrossHosts, codec: Codec, residuals: Residuals, overwrites: Overwrites) -> None:
        self._rounds, self._residuals, self._overwrites = rounds, residuals, overwrites
        totals = rounds.new_totals()
        self._packing, self._words = Packing(totals.layout, codec), len(totals.head)
        self._own = self._new()
        self._packed: list[_PackedTotals] = []
        self._spare: list[RoundTotals] = []

    def _new(self) -> _PackedTotals:
        return _PackedTotals(self._words, self._packing.nbytes)

    def buffer(self) -> _PackedTotals:
        return self._packed.pop() if self._packed else self._new()

    def seal(self, own: RoundTotals) -> memoryview:
        before, after = self._residuals.begin(own.number, self._overwrites.stamp)
        self._own.head[:] = own.head
        self._packing.pack(own.arrays, before, after, self._own.data)
        for pieces in own.without_contribution():
            copy_all(cut(after, pieces), cut(before, pieces))
        _clear(own)
        self._residuals.end(own.number)
        return self._own.buffer

    def open(self, received: _PackedTotals) -> RoundTotals:
        totals = self._spare.pop() if self._spare else self._rounds.new_totals()
        totals.head[:] = received.head
        self._packing.unpack(received.data, totals.arrays)
        _clear(totals)
        self._packed.append(received)
        return totals

    def release(self, totals: RoundTotals) -> None:
        self._spare.append(totals)

    def renew(self) -> None:
        self._own = self._new()

    def has_not_counted(self, number: int) -> None:
        """Restore the residuals before round ``number``, which continued without this host."""
        self._residuals.undo(number)


def _clear(totals: RoundTotals) -> None:
    """Set the stripes without a contribution to 0: they would hold residuals only."""
    for pieces in totals.without_contribution():
        for array in cut(totals.arrays, pieces):
            array[...] = 0
