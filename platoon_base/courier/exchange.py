"""Copies of centers between two couriers: whole ones, one at a time in each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.layout import Layout
from platoon_base.links.stream import LONGEST_PAYLOAD, Stream

__all__ = ["Conversation", "flat_copy"]

Array = np.ndarray[Any, Any]

COPY, ASK, START = 1, 2, 3  # kinds of records: of a copy to average, a question for starting values, of those


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
    start_nbytes : int
        Bytes of starting values.

    Attributes
    ----------
    theirs : list of ndarray
        The latest copy of the other host's center.
    fresh : bool
        Whether that is whole, and was not used yet. While it is, nothing more is received into it.
    asked : bool
        Whether the other host has asked for starting values.
    start : bytearray or None
        The starting values once they have all come.
    """

    def __init__(self, stream: Stream, layout: Layout, start_nbytes: int) -> None:
        self.stream = stream
        self._buffer, self.theirs = flat_copy(layout)
        self._start = bytearray(start_nbytes)
        self._received = {COPY: 0, START: 0}
        self._kept: list[Any] = []  # memory that is being sent
        self.fresh = self.asked = self.started = False

    @property
    def sending(self) -> bool:
        """Whether something is still to be sent."""
        return self.stream.sent != self.stream.posted

    def post(self, kind: int, data: memoryview) -> None:
        """Send a copy; its memory must not change until `sending` is over."""
        for at in range(0, len(data), LONGEST_PAYLOAD):
            self.stream.post(kind, at, data[at : at + LONGEST_PAYLOAD])

    def ask(self) -> None:
        """Ask for starting values."""
        self.stream.post(ASK, 0, b"")

    @property
    def start(self) -> bytearray | None:
        """See above."""
        return self._start if self.started else None

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        """See `Receiver.place`."""
        if tag == ASK:
            return memoryview(bytearray(0))
        if tag == COPY and self.fresh:
            return None
        target = self._buffer if tag == COPY else memoryview(self._start)
        return target[offset : offset + length]

    def done(self, tag: int, offset: int, length: int) -> None:
        """See `Receiver.done`."""
        if tag == ASK:
            self.asked = True
            return
        self._received[tag] += length
        if tag == COPY and self._received[COPY] == len(self._buffer):
            self._received[COPY], self.fresh = 0, True
        elif tag == START and self._received[START] == len(self._start):
            self.started = True


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
