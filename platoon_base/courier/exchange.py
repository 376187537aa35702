"""What goes between two couriers: copies of centers, and totals of rounds; one of each at a time in each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.centers.round_totals import RoundTotals
from platoon_base.layout import Layout
from platoon_base.links.stream import LONGEST_PAYLOAD, BrokenStreamError, Stream

__all__ = ["ASK", "COPY", "SIZE", "START", "TOTALS", "Conversation", "flat_copy", "weighted_mean"]

Array = np.ndarray[Any, Any]

# Kinds of records: of a copy to average, a question for a whole center, its size (the record's offset), its content,
# of a round's totals.
COPY, ASK, SIZE, START, TOTALS = 1, 2, 3, 4, 5
_MOST_STATES = 64


def flat_copy(layout: Layout) -> tuple[memoryview, list[Array]]:
    """Make room for the copy of a center: as bytes, and as the arrays in them."""
    buffer = bytearray(layout.nbytes)
    return memoryview(buffer), layout.views(buffer)


class Conversation:
    """One link to the courier of another host; a `Receiver` of its records.

    Parameters
    ----------
    stream : Stream
    layout : Layout

    Attributes
    ----------
    theirs : list of ndarray
        The latest copy of the other host's center.
    fresh : bool
        Whether that is whole, and was not used yet. While it is, nothing more is received into it.
    asked : bool
        Whether the other host has asked for this one's center.
    totals : RoundTotals or None
        What the other host has contributed to a round; received once there is room for it.
    """

    def __init__(self, stream: Stream, layout: Layout) -> None:
        self.stream = stream
        self._buffer, self.theirs = flat_copy(layout)
        self._most_start = layout.nbytes * (1 + _MOST_STATES) + 8
        self._start = bytearray(0)
        self._received = {COPY: 0, START: 0, TOTALS: 0}
        self.fresh = self.asked = self._started = False
        self.totals: RoundTotals | None = None
        self._round = 0

    @property
    def sending(self) -> bool:
        """Whether something is still to be sent."""
        return self.stream.sent != self.stream.posted

    def post(self, kind: int, data: memoryview) -> None:
        """Send a copy; its memory must not change until `sending` is over."""
        for at in range(0, len(data), LONGEST_PAYLOAD):
            self.stream.post(kind, at, data[at : at + LONGEST_PAYLOAD])

    def ask(self) -> None:
        """Ask for the other host's center."""
        self.stream.post(ASK, 0, b"")

    def post_start(self, data: memoryview) -> None:
        """Send a whole center; see `post`."""
        self.stream.post(SIZE, len(data), b"")
        self.post(START, data)

    def take_start(self) -> bytearray | None:
        """Return the other host's center if one has come since the last call."""
        if not self._started:
            return None
        self._started = False
        return self._start

    @property
    def waits(self) -> bool:
        """Whether what has come next has to wait for this host."""
        return self.stream.held and (self.fresh or self.totals is None)

    @property
    def round(self) -> int:
        """The round whose totals have all come; 0 if none have."""
        return self._round

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        """See `Receiver.place`."""
        if tag in (ASK, SIZE):
            return memoryview(bytearray(0))
        if (tag == COPY and self.fresh) or (tag == TOTALS and self.totals is None):
            return None
        target = self._target(tag)
        if offset + length > len(target):
            raise BrokenStreamError(
                f"got bytes {offset} to {offset + length} of kind {tag}, and expected {len(target)}"
            )
        if tag == TOTALS:
            self._round = 0
        return target[offset : offset + length]

    def _target(self, tag: int) -> memoryview:
        """Return where records of a kind belong; nowhere if there are none of this kind."""
        if tag == COPY:
            return self._buffer
        if tag == TOTALS and self.totals is not None:
            return self.totals.buffer
        return memoryview(self._start if tag == START else b"")

    def done(self, tag: int, offset: int, length: int) -> None:
        """See `Receiver.done`."""
        if tag == ASK:
            self.asked = True
            return
        if tag == SIZE:
            if offset > self._most_start:
                raise BrokenStreamError(f"got a center of {offset} bytes, and expected at most {self._most_start}")
            self._start, self._received[START], self._started = bytearray(offset), 0, False
            return
        self._received[tag] += length
        if self._received[tag] < len(self._target(tag)):
            return
        self._received[tag] = 0
        if tag == COPY:
            self.fresh = True
        elif tag == START:
            self._started = True
        elif self.totals is not None:
            self._round = self.totals.number


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several hosts' copies, array by array; half-precision numbers are added in float32."""
    total = sum(weights)
    means = []
    for arrays in zip(*copies):
        dtype = arrays[0].dtype
        wide = np.dtype("f4") if dtype.itemsize < 4 else dtype
        mean = arrays[0].astype(wide) * wide.type(weights[0] / total)
        for array, weight in zip(arrays[1:], weights[1:]):
            mean += array.astype(wide, copy=False) * wide.type(weight / total)
        means.append(mean.astype(dtype, copy=False))
    return means
