"""Records between two couriers: one copy of a center and one set of round totals per direction."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from platoon_base.centers.across_hosts import RoundTotals
from platoon_base.compression.packing import Packing
from platoon_base.dtypes import Array
from platoon_base.layout import Layout
from platoon_base.links.stream import MAX_PAYLOAD_BYTES, BrokenStreamError, Stream
from platoon_base.system.process import awake

# Kinds of records. COPY: a copy to average. _ASK: a request for a whole center, at the round in the
# offset or later. _SIZE and _WHOLE: size and content of a whole center. TOTALS: totals of a round.
# _VERSION: 1 + the version of the sender's center. _HEARD: 1 + the version of the receiver's center that
# the sender knows. MOVE: a packed move of the latest copy, see `platoon_base.courier.background`.
# _LIFE: a random number of the sender's `Pair`. _OFFER: answers an exchange by the copy that
# follows, with its number and weights. _DECLINED: declines an exchange. _HAS: the latest exchange
# for which the sender has the receiver's answer.
COPY, _ASK, _SIZE, _WHOLE, TOTALS, _VERSION, _HEARD, MOVE = 1, 2, 3, 4, 5, 6, 7, 8
_LIFE, _OFFER, _DECLINED, _HAS = 9, 10, 11, 12
_WITHOUT_CONTENT = (_ASK, _SIZE, _VERSION, _HEARD, _LIFE, _OFFER, _DECLINED, _HAS)
_WORKERS_BITS = 16  # The two weights beside the exchange number have 16 bits each.
_MAX_STATES = 64
_MOST_COUNT = 1 << 32
NOT_FILLED = -1


def flat_copy(layout: Layout) -> tuple[memoryview, list[Array]]:
    """Allocate memory for the copy of a center; return it as bytes and as arrays."""
    buffer = bytearray(layout.nbytes)
    return memoryview(buffer), layout.views(buffer)


class Answer(NamedTuple):
    """The other host's answer to an exchange; see `OwnCopy` for ``workers`` and ``total``."""

    number: int
    workers: int = 0
    total: int = 0
    declined: bool = False


class Conversation:
    """The link to the courier of another host, and the `Receiver` of its records.

    The caller consumes what arrives; a record waits until the one before is consumed. ``theirs``,
    the latest copy of the other host's center without moments, is whole and unused while `fresh`;
    ``answer`` is unused while not None. `totals_buffer` receives contributions; without it they
    wait.

    ``version`` is the version of the other host's center, see `platoon_base.centers.across_hosts`:
    `NOT_FILLED` before it has values, None before it arrived. ``knows`` is the latest version of this
    host's center that the other one has acknowledged: its later records were sent after that.
    ``copy_version`` belongs to the latest copy. ``has`` is the latest exchange for which the other
    host has this host's answer. ``asked`` is the round from which the other host requests this
    center. ``moved_at`` excludes keep-alives; ``heard_at`` includes them.
    """

    def __init__(self, stream: Stream, layout: Layout, packing: Packing | None = None) -> None:
        self.stream = stream
        self._buffer, self.theirs = flat_copy(layout.trained)
        self._most_whole = layout.nbytes * (1 + _MAX_STATES) + 16
        self._whole = bytearray(0)
        self._wholes: deque[bytearray] = deque()
        self._received = {COPY: 0, _WHOLE: 0, TOTALS: 0, MOVE: 0}
        self._packing = packing
        self._move = np.zeros(0 if packing is None else packing.nbytes, np.uint8)
        self._has_copy = False
        self.fresh = False
        self.version: int | None = None
        self.knows = NOT_FILLED
        self.copy_version: int | None = None
        self.life: int | None = None
        self.has: int | None = None
        self.answer: Answer | None = None
        self.asked: int | None = None
        self.totals_buffer: RoundTotals | None = None
        self._round = 0  # Round of the totals that have arrived.
        self._held = 0  # Kind of the record that waits.
        self.moved_at = self.heard_at = awake()
        self._keep_alive_posted = 0  # Number of posted records up to the latest keep-alive.
        self._is_keep_alive: bool | None = None  # None if no whole record has been received.

    def talk(self) -> None:
        """Send and receive without blocking; raises `BrokenStreamError`."""
        is_keep_alive = self.stream.posted == self._keep_alive_posted
        sent = self.stream.push() and not is_keep_alive
        self._is_keep_alive = None
        received = self.stream.pull(self)
        if received or self.waits:
            self.heard_at = awake()
        # A host that only keeps the link alive stalls: others do not wait for its copy.
        if sent or (received and not self._is_keep_alive):
            self.moved_at = awake()

    @property
    def sending(self) -> bool:
        return self.stream.sent != self.stream.posted

    def drop_answer(self) -> None:
        self.answer, self.fresh = None, False

    def post(self, kind: int, data: memoryview) -> None:
        """Send a copy; its memory must not change until `sending` is over."""
        for at in range(0, len(data), MAX_PAYLOAD_BYTES):
            self.stream.post(kind, at, data[at : at + MAX_PAYLOAD_BYTES])

    def send_life(self, life: int) -> None:
        self.stream.post(_LIFE, life, b"")

    def offer(self, number: int, workers: int, total: int) -> None:
        """Answer an exchange with the copy that is posted next."""
        self.stream.post(_OFFER, (number << _WORKERS_BITS | workers) << _WORKERS_BITS | total, b"")

    def decline(self, number: int) -> None:
        self.stream.post(_DECLINED, number, b"")

    def acknowledge(self, number: int) -> None:
        """Report the latest exchange for which this host has the other one's answer."""
        self.stream.post(_HAS, number, b"")

    def send_version(self, version: int) -> None:
        """Send the version of this host's center; later copies have that version."""
        self.stream.post(_VERSION, version + 1, b"")

    def keep_alive(self) -> None:
        """Repeat a known record unless others wait to be sent."""
        if self.version is not None and not self.sending:
            self.stream.post(_HEARD, self.version + 1, b"")
            self._keep_alive_posted = self.stream.posted

    def ask(self, number: int) -> None:
        """Request the other host's center, at round ``number`` or later."""
        self.stream.post(_ASK, number, b"")

    def post_whole(self, data: memoryview) -> None:
        self.stream.post(_SIZE, len(data), b"")
        self.post(_WHOLE, data)

    def take_whole(self) -> bytearray | None:
        """Return the oldest whole center received from the other host; None if there is none."""
        return self._wholes.popleft() if self._wholes else None

    def put_back(self, whole: bytearray) -> None:
        self._wholes.appendleft(whole)

    def take_totals(self, number: int) -> RoundTotals | None:
        """Return the other host's contributions to a round, if complete; the caller owns them."""
        if self._round != number:
            return None
        totals, self.totals_buffer, self._round = self.totals_buffer, None, 0
        return totals

    @property
    def waits(self) -> bool:
        """Whether the next record must wait until this host has consumed the last one."""
        return self.stream.held and self._has_no_room(self._held)

    def _has_no_room(self, tag: int) -> bool:
        if tag in (COPY, MOVE):
            return self.fresh
        return tag == TOTALS and self.totals_buffer is None

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        """Return a buffer for ``length`` bytes; None leaves the records for a later pull."""
        if tag in _WITHOUT_CONTENT:
            return memoryview(bytearray(0))
        if self._has_no_room(tag):
            self._held = tag
            return None
        target = self._target(tag)
        if not length or offset + length > len(target):  # No sender sends empty content.
            raise BrokenStreamError(
                f"got bytes {offset} to {offset + length} of kind {tag}, and expected some of {len(target)}"
            )
        if tag == TOTALS:
            self._round = 0
        return target[offset : offset + length]

    def _target(self, tag: int) -> memoryview:
        """Return the buffer for records of this kind; an empty one for unexpected kinds."""
        if tag == COPY:
            return self._buffer
        if tag == TOTALS and self.totals_buffer is not None:
            return self.totals_buffer.buffer
        if tag == MOVE and self._has_copy:
            return memoryview(self._move)  # type: ignore[arg-type]
        return memoryview(self._whole if tag == _WHOLE else b"")

    def done(self, tag: int, offset: int, length: int) -> None:
        """Handle a record with a payload in the buffer that `place` returned."""
        is_keep_alive = tag == _HEARD and self.knows == offset - 1
        self._is_keep_alive = is_keep_alive and self._is_keep_alive is not False
        if tag == _ASK:
            self.asked = offset
        elif tag == _VERSION:
            self.version = offset - 1
            self.stream.post(_HEARD, offset, b"")
        elif tag == _HEARD:
            self.knows = offset - 1
        elif tag == _LIFE:
            self.life = offset
        elif tag == _HAS:
            self.has = offset
        elif tag == _DECLINED:
            self.answer = Answer(offset, declined=True)
        elif tag == _OFFER:
            rest, total = divmod(offset, 1 << _WORKERS_BITS)
            number, workers = divmod(rest, 1 << _WORKERS_BITS)
            self.answer = Answer(number, workers, total)
        elif tag == _SIZE:
            if offset > self._most_whole:
                raise BrokenStreamError(f"got a center of {offset} bytes, and expected at most {self._most_whole}")
            self._whole, self._received[_WHOLE] = bytearray(offset), 0
        else:
            self._received[tag] += length
            if self._received[tag] == len(self._target(tag)):
                self._received[tag] = 0
                self._is_whole(tag)

    def _is_whole(self, tag: int) -> None:
        if tag == MOVE and self._packing is not None:
            self._packing.follow(self.theirs, self._move)
        if tag in (COPY, MOVE):
            self.fresh, self.copy_version, self._has_copy = True, self.version, True
        elif tag == _WHOLE:
            self._wholes.append(self._whole)
        elif self.totals_buffer is not None:
            head = self.totals_buffer.head
            if not ((head >= 0) & (head < _MOST_COUNT)).all():
                raise BrokenStreamError("got totals whose round or counts are not numbers")
            self._round = self.totals_buffer.number
