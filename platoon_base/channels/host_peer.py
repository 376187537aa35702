"""One end of the link between two launchers: numbers what is sent, orders what comes, and knows who is silent.

Messages are divided into parts, since ZeroMQ hears nothing while a large frame is under way, and since strangers may
announce frames of any size that is allowed. Bulk messages are slow, and other messages overtake them.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from platoon_base.system.awake import awake

__all__ = ["HEARTBEAT_S", "HEARTBEAT_TIMEOUT_S", "MAX_MESSAGE_BYTES", "MAX_PART_BYTES", "NO_PEER", "Frame", "Peer"]

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
HEARTBEAT_TIMEOUT_S = 2.0  # without a heartbeat, after which a host counts as silent
MAX_MESSAGE_BYTES = 1 << 28
MAX_PART_BYTES = 1 << 16
NO_PEER = bytes(16)  # the id of a server that has not answered yet
_BROKEN_S = 1.0  # that a connection which the other end has closed has to come back
_FRESH_S = 1.0  # a connection that broke so soon after a heartbeat was closed by the other end, not cut
_LAST_FRAMES_S = 0.5  # in which frames of a process that has ended may still come
_SEND_AGAIN_S = 2.0
_WINDOW_PARTS, _WINDOW_BYTES = 256, 1 << 21  # that are under way; fewer than ZeroMQ queues
_BULK_BYTES = 1 << 19  # of the window, so that other messages soon follow on a slow link
_ACKNOWLEDGE_EVERY = 4  # parts
_HEADER = struct.Struct("<16s16sQQB")
_MORE, _BULK, _DISMISSAL = 1, 2, 4


class Frame(NamedTuple):
    """One frame of a link.

    Attributes
    ----------
    session, server : bytes, shape (16,)
        Made by either end, for as long as its process lives; `NO_PEER` for a server that has not answered yet.
    number : int
        Of the part in it; 0 for none.
    acknowledged : int
        The latest number that has come from the other end.
    kind : int
        Whether more parts of the message follow, whether it is bulk, and whether the server dismisses the session.
    body : bytes
    """

    session: bytes
    server: bytes
    number: int
    acknowledged: int
    kind: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes that are sent."""
        return _HEADER.pack(*self[:5]) + self.body

    @classmethod
    def decode(cls, data: bytes) -> Frame | None:
        """Return the frame of these bytes; None if they are none."""
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
        """Whether it is such an answer."""
        return bool(self.kind & _DISMISSAL)


class _Lane:
    """The messages of one kind: those that wait to be sent, in parts, and the one that is coming in."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, bool]] = deque()  # parts, and whether more of the message follow
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, body: bytes) -> None:
        """Divide a message into parts."""
        for begin in range(0, len(body) or 1, MAX_PART_BYTES):
            end = begin + MAX_PART_BYTES
            self.waiting.append((body[begin:end], end < len(body)))

    def join(self, part: bytes, more: bool) -> bytes | None:
        """Return the message that ends with a part; None if more of it follow."""
        self._size += len(part)
        if self._size <= MAX_MESSAGE_BYTES:
            self._parts.append(part)
        if more:
            return None
        message = b"".join(self._parts) if self._size <= MAX_MESSAGE_BYTES else None
        self._parts, self._size = [], 0
        return message


class Peer:
    """The other end of a link: numbers what is sent to it, orders what comes from it, and knows when it was heard.

    Parameters
    ----------
    session : bytes, shape (16,)
        Made by the end that connects, for as long as its process lives.
    server : bytes, shape (16,)
        Made by the end that listens, likewise; `NO_PEER` while that is not known.
    write : callable
        Sends one frame if that is possible now, and else drops it.

    Attributes
    ----------
    has_lifeline : bool
        Whether the end of its process is noticed, see `platoon_base.channels.lifeline`. If not, it counts as ended when
        the connection breaks and does not come back.
    """

    def __init__(self, session: bytes, server: bytes, write: Callable[[bytes], None]) -> None:
        now = awake()
        self.session, self.server = session, server
        self.last_received_at = self._progress_at = self._wrote_at = now
        self.has_lifeline = False
        self._broken_at: float | None = None  # when the connection broke
        self._ended_at: float | None = None  # when the process was seen to end
        self._write = write
        self._sent = self._received = self._acknowledged = 0  # the latest numbers
        self._lanes = {0: _Lane(), _BULK: _Lane()}
        self._latest_bulk: bytes | None = None
        self._in_flight: dict[int, tuple[int, bytes]] = {}  # kinds and parts that were not acknowledged, by number
        self._bytes_in_flight = 0

    def send(self, body: bytes, bulk: bool = False) -> None:
        """Send a message; it arrives once, in order, unless the other end is lost.

        Messages overtake those with ``bulk``, of which only the latest is sent where several wait.
        """
        if len(body) > MAX_MESSAGE_BYTES:
            log.warning(
                "a message of %d MB to another host is not sent, the limit is %d: keep less, such as in `worker.kept`",
                len(body) >> 20, MAX_MESSAGE_BYTES >> 20,
            )  # fmt: skip
        elif bulk:
            self._latest_bulk = body
        else:
            self._lanes[0].put(body)
        self._fill()

    def _fill(self) -> None:
        """Send what waits, as far as the window has room."""
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
        """Number of parts of messages other than bulk that were not acknowledged yet."""
        return len(self._lanes[0].waiting) + sum(not kind & _BULK for kind, _ in self._in_flight.values())

    def take(self, frame: Frame) -> bytes | None:
        """Take a frame that has come; returns the message that ends with it, None if none does."""
        self.last_received_at = awake()
        self._broken_at = None
        if self._ended_at is not None and self.last_received_at - self._ended_at > _LAST_FRAMES_S:
            self._ended_at = None  # something on the way has closed a connection
        for done in [sent for sent in self._in_flight if sent <= frame.acknowledged]:
            self._bytes_in_flight -= len(self._in_flight.pop(done)[1])
            self._progress_at = self.last_received_at
        self._fill()
        if frame.number != self._received + 1:  # a repeat, one after a gap, or none
            return None
        self._received = frame.number
        if self._received - self._acknowledged >= _ACKNOWLEDGE_EVERY:
            self.acknowledge()
        return self._lanes[frame.kind & _BULK].join(frame.body, bool(frame.kind & _MORE))

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is time, and again what was not acknowledged for long; call it several times a second.

        All times of this object are by `awake`: while this process itself is stopped it can hear nothing.
        """
        if self._in_flight and now - self._progress_at > _SEND_AGAIN_S:
            self.send_again(now)
        elif now - self._wrote_at >= HEARTBEAT_S:
            self.acknowledge()

    def send_again(self, now: float) -> None:
        """Send again what was not acknowledged, as on a new connection."""
        self._progress_at = now
        for number, (kind, part) in self._in_flight.items():
            self._put(number, kind, part)

    def broke(self, now: float) -> None:
        """Record that the connection has broken; by a cut that is noticed by silence only."""
        if self._broken_at is None and now - self.last_received_at < _FRESH_S:
            self._broken_at = now

    def ended(self, now: float) -> None:
        """Record that its process was seen to end, unless more is heard of it."""
        self._ended_at = now

    def acknowledge(self) -> None:
        """Acknowledge what has come, at once; as a heartbeat does."""
        self._put(0, 0, b"")

    def silent_s(self, now: float) -> float:
        """Return for how long nothing came, in seconds."""
        return now - self.last_received_at

    @property
    def gone(self) -> bool:
        """Whether the connection is broken, or the process has ended; it may come back."""
        return self._broken_at is not None or self._ended_at is not None

    def closed(self, now: float) -> bool:
        """Return whether the process has ended, as far as can be known."""
        at = self._ended_at if self.has_lifeline else self._broken_at
        return at is not None and now - at > _BROKEN_S

    def _put(self, number: int, kind: int, part: bytes) -> None:
        self._wrote_at = awake()
        self._acknowledged = self._received
        self._write(Frame(self.session, self.server, number, self._received, kind, part).encode())
