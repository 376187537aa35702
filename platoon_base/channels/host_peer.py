"""One end of the link between two launchers: ordered messages, and detection of silence.

Messages are divided into parts: ZeroMQ reports nothing while a large frame is in transit, and
strangers may announce frames of any allowed size. Other messages overtake bulk messages.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

__all__ = ["MAX_MESSAGE_BYTES", "MAX_PART_BYTES", "NO_PEER", "Frame", "Peer"]

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 28
MAX_PART_BYTES = 1 << 16
NO_PEER = bytes(16)  # The id of a server that has not answered yet.
_BROKEN_S = 1.0  # A connection that the other end has closed must come back within this time.
_FRESH_S = 1.0  # If a connection broke within this time after a heartbeat, the other end closed it.
_LAST_FRAMES_S = 0.5  # Frames of an ended process may still arrive within this time.
# Limits on unacknowledged parts and bytes; below the queue of ZeroMQ.
_WINDOW_PARTS, _WINDOW_BYTES = 256, 1 << 21
_BULK_BYTES = 1 << 19  # Bulk bytes in the window: other messages then follow soon on a slow link.
_ACKNOWLEDGE_EVERY = 4  # Parts.
_HEADER = struct.Struct("<16s16sQQB")
_MORE, _BULK, _DISMISSAL = 1, 2, 4


class Frame(NamedTuple):
    """One frame of a link.

    ``session`` and ``server`` are ids of 16 bytes of the two processes; `NO_PEER` for a server that
    has not answered yet. ``number`` is that of the part, 0 for none. ``acknowledged`` is the latest
    number received from the other end. ``kind`` has bits: more parts follow, bulk, dismissal.
    """

    session: bytes
    server: bytes
    number: int
    acknowledged: int
    kind: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        return _HEADER.pack(*self[:5]) + self.body

    @classmethod
    def decode(cls, data: bytes) -> Frame | None:
        """Return the frame in these bytes; None if they are invalid."""
        if len(data) < _HEADER.size:
            return None
        session, server, number, acknowledged, kind = _HEADER.unpack_from(data)
        return cls(session, server, number, acknowledged, kind, data[_HEADER.size :])

    @classmethod
    def dismissal(cls, session: bytes, server: bytes) -> Frame:
        """Return the answer to a session that the server does not know."""
        return cls(session, server, 0, 0, _DISMISSAL)

    @property
    def dismisses(self) -> bool:
        return bool(self.kind & _DISMISSAL)


class _Lane:
    """The messages of one kind: parts that wait to be sent, and the message that is arriving."""

    def __init__(self) -> None:
        # Parts, and whether more of the message follow.
        self.waiting: deque[tuple[bytes, bool]] = deque()
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, body: bytes) -> None:
        for begin in range(0, len(body) or 1, MAX_PART_BYTES):
            end = begin + MAX_PART_BYTES
            self.waiting.append((body[begin:end], end < len(body)))

    def join(self, part: bytes, more: bool) -> bytes | None:
        """Return the message that ends with a part; None if more follow, or it is too large."""
        self._size += len(part)
        if self._size <= MAX_MESSAGE_BYTES:
            self._parts.append(part)
        if more:
            return None
        message = b"".join(self._parts) if self._size <= MAX_MESSAGE_BYTES else None
        self._parts, self._size = [], 0
        return message


class Peer:
    """The other end of a link: numbers sent messages, orders received ones, and tracks liveness.

    ``write(data)`` sends a frame if that is possible now, otherwise drops it. With
    ``has_lifeline``, the end of its process is detected, see `platoon_base.channels.lifeline`;
    otherwise it counts as ended when the connection breaks and does not come back.
    """

    def __init__(self, session: bytes, server: bytes, write: Callable[[bytes], None]) -> None:
        now = awake()
        self.session, self.server = session, server
        self.last_received_at = self._progress_at = self._wrote_at = now
        self.has_lifeline = False
        self._broken_at: float | None = None  # When the connection broke.
        self._ended_at: float | None = None  # When the process ended.
        self._write = write
        self._sent = self._received = self._acknowledged = 0  # The latest numbers.
        self._lanes = {0: _Lane(), _BULK: _Lane()}
        self._latest_bulk: bytes | None = None
        # Kinds and parts that are not acknowledged, by number.
        self._in_flight: dict[int, tuple[int, bytes]] = {}
        self._bytes_in_flight = 0

    def send(self, body: bytes, bulk: bool = False) -> None:
        """Send a message; it arrives once, in order, unless the other end is lost."""
        # Other messages overtake bulk ones; of several waiting bulk messages only the latest is
        # sent.
        if len(body) > MAX_MESSAGE_BYTES:
            log.warning(
                "not sending a message of %d MB to another host, because the limit is %d MB: "
"keep less, for example in `worker.kept`",
                len(body) >> 20, MAX_MESSAGE_BYTES >> 20,
            )  # fmt: skip
        elif bulk:
            self._latest_bulk = body
        else:
            self._lanes[0].put(body)
        self._fill()

    def _fill(self) -> None:
        while len(self._in_flight) < _WINDOW_PARTS and self._bytes_in_flight < _WINDOW_BYTES:
            kind = 0 if self._lanes[0].waiting else _BULK
            waiting = self._lanes[kind].waiting
            if kind and self._bytes_in_flight >= _BULK_BYTES:
                return
            if not waiting:
                if self._latest_bulk is None:
                    return
                self._lanes[_BULK].put(self._latest_bulk)
                self._latest_bulk = None
            part, more = waiting.popleft()
            if not self._in_flight:
                self._progress_at = awake()
            self._sent += 1
            self._in_flight[self._sent] = (kind | _MORE * more, part)
            self._bytes_in_flight += len(part)
            self._put(self._sent, kind | _MORE * more, part)

    @property
    def in_flight(self) -> int:
        """Number of parts that are not acknowledged, without bulk messages."""
        return len(self._lanes[0].waiting) + sum(not kind & _BULK for kind, _ in self._in_flight.values())

    def take(self, frame: Frame) -> bytes | None:
        """Handle a received frame; return the message that ends with it, or None."""
        self.last_received_at = awake()
        self._broken_at = None
        if self._ended_at is not None and self.last_received_at - self._ended_at > _LAST_FRAMES_S:
            self._ended_at = None  # Something on the way has closed a connection.
        for done in [sent for sent in self._in_flight if sent <= frame.acknowledged]:
            self._bytes_in_flight -= len(self._in_flight.pop(done)[1])
            self._progress_at = self.last_received_at
        self._fill()
        if frame.number != self._received + 1:  # A repeat, one after a gap, or none.
            return None
        self._received = frame.number
        if self._received - self._acknowledged >= _ACKNOWLEDGE_EVERY:
            self.acknowledge()
        return self._lanes[frame.kind & _BULK].join(frame.body, bool(frame.kind & _MORE))

    def tick(self, now: float) -> None:
        """Send a heartbeat or resend parts if due; call it several times a second, with `awake`."""
        if self._in_flight and now - self._progress_at > timeout("resend"):
            self.send_again(now)
        elif now - self._wrote_at >= timeout("heartbeat"):
            self.acknowledge()

    def send_again(self, now: float) -> None:
        self._progress_at = now
        for number, (kind, part) in self._in_flight.items():
            self._put(number, kind, part)

    def broke(self, now: float) -> None:
        """Record that the connection broke; a cut is detected by silence only."""
        if self._broken_at is None and now - self.last_received_at < max(_FRESH_S, 2 * timeout("heartbeat")):
            self._broken_at = now

    def ended(self, now: float) -> None:
        """Record that its process has ended, unless more arrives from it."""
        self._ended_at = now

    def acknowledge(self) -> None:
        """Acknowledge immediately what has arrived, as a heartbeat does."""
        self._put(0, 0, b"")

    def silent_s(self, now: float) -> float:
        return now - self.last_received_at

    @property
    def gone(self) -> bool:
        """Whether the connection is broken or the process has ended; it may come back."""
        return self._broken_at is not None or self._ended_at is not None

    @property
    def absent(self) -> bool:
        """Whether nothing connects it at present: it is gone or silent."""
        return self.gone or self.silent_s(awake()) > timeout("silence")

    def closed(self, now: float) -> bool:
        """Return whether the process has ended, as far as is known."""
        at = self._ended_at if self.has_lifeline else self._broken_at
        return at is not None and now - at > _BROKEN_S

    def _put(self, number: int, kind: int, part: bytes) -> None:
        self._wrote_at = awake()
        self._acknowledged = self._received
        self._write(Frame(self.session, self.server, number, self._received, kind, part).encode())
