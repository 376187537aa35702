"""Messages between the launchers of two hosts: each arrives once and in order, or its host is lost.

A launcher opens two connections to host 0. One carries the messages. They are numbered and kept
until acknowledged, so nothing is lost when it breaks and the launcher connects again. The other is
idle and shows the end of a process: then its kernel closes the connection in order (FIN), while a
cut, a firewall or a machine without power cause silence or a reset. A connection with messages
cannot tell, because a process that ends with unread messages resets it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import select
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.links.handshake import WRONG_PROOFS, Address, Caller, Listener, Opening
from platoon_base.links.stream import BrokenStreamError, Stream
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 28
_PART_BYTES = 1 << 16
# Limits on unacknowledged parts and bytes. Bulk has a lower one: other messages then follow soon
# on a slow link.
_WINDOW_PARTS, _WINDOW_BYTES, _BULK_BYTES = 256, 1 << 21, 1 << 19
# A launcher connects again after this multiple of the timeout `silence`: TCP may retransmit much later.
_REDIAL = 1.5
_RETURN_S = 1.0  # A process that seems to have ended must be heard again within this time.
_LAST_RECORDS_S = 0.5  # Records of an ended process may still arrive within this time.
_FIRST_HOST = 0  # Other launchers derive their number in handshakes from the session.
TOKEN = b"launchers"  # Addresses of other links have tokens that only the processes of a job know.
_ID_BYTES = 16
_NO_SERVER = bytes(_ID_BYTES)  # The id of a host 0 that has not answered yet.
# Kinds of records, in the lowest byte of a tag. `HELLO` and `IDLE` begin a connection with the ids of
# both processes; the former has the number of the latest part received, as `RECEIVED` has.
HELLO, IDLE, RECEIVED, DISMISSAL, PART = range(1, 6)
_MORE, _BULK = 1 << 8, 1 << 9  # More parts follow; the part belongs to a bulk message.
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


class _Lane:
    """The messages of one kind: parts that wait to be sent, and the message that is arriving."""

    def __init__(self) -> None:
        # Parts, and whether more of the message follow.
        self.waiting: deque[tuple[bytes, bool]] = deque()
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, body: bytes) -> None:
        for begin in range(0, len(body) or 1, _PART_BYTES):
            end = begin + _PART_BYTES
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


class _Records:
    """Receives records into ``buffer``."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def place(self, tag: int, offset: int, length: int) -> memoryview:
        self.buffer = bytearray(length)
        return memoryview(self.buffer)

    def done(self, tag: int, offset: int, length: int) -> None:
        """Handle a record in ``buffer``."""


class _Greeting(_Records):
    """The first record of a connection; ``kind`` is 0 until it has arrived."""

    kind = received = 0

    def done(self, tag: int, offset: int, length: int) -> None:
        if tag not in (HELLO, IDLE) or length != 2 * _ID_BYTES:
            raise BrokenStreamError(f"got a first record of kind {tag} with {length} bytes", altered=True)
        self.kind, self.received = tag, offset


class Peer(_Records):
    """The other end of a link: numbers sent messages, orders received ones, and tracks liveness.

    ``session`` and ``server`` are the ids of the other launcher's and of host 0's process; a new
    process has a new one. ``inbox`` has received messages that are not consumed. ``dismissed_by``
    is the id of a host 0 that does not know the session.
    """

    def __init__(self, session: bytes, server: bytes) -> None:
        super().__init__()
        self.session, self.server, self.dismissed_by = session, server, b""
        self.inbox: deque[bytes] = deque()
        self.last_received_at = self._wrote_at = awake()
        self._ended_at: float | None = None  # When the process ended.
        self._stream: Stream | None = None
        self._is_resumed = False  # Whether both ends know what the other one has received.
        self.idle: Stream | None = None
        self._sent = self._received = self._acknowledged = 0  # The latest numbers.
        self._lanes = {0: _Lane(), _BULK: _Lane()}
        self._latest_bulk: bytes | None = None
        # Tags and parts that are not acknowledged, by number.
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
        self._push()

    def _fill(self) -> None:
        while len(self._in_flight) < _WINDOW_PARTS and self._bytes_in_flight < _WINDOW_BYTES:
            lane = 0 if self._lanes[0].waiting else _BULK
            waiting = self._lanes[lane].waiting
            if lane and self._bytes_in_flight >= _BULK_BYTES:
                return
            if not waiting:
                if self._latest_bulk is None:
                    return
                self._lanes[_BULK].put(self._latest_bulk)
                self._latest_bulk = None
            part, more = waiting.popleft()
            self._sent += 1
            self._in_flight[self._sent] = tag, _ = (PART | lane | _MORE * more, part)
            self._bytes_in_flight += len(part)
            if self._is_resumed:
                self._post(tag, self._sent, part)

    @property
    def in_flight(self) -> int:
        """Number of parts that are not acknowledged, without bulk messages."""
        return len(self._lanes[0].waiting) + sum(not tag & _BULK for tag, _ in self._in_flight.values())

    def connect(self, stream: Stream) -> None:
        """Use a new connection for messages; they are sent when the other end has said hello."""
        _close(self._stream)
        self._stream, self._is_resumed = stream, False
        self._note_received()
        self._post(HELLO, self._received, self.session + self.server)
        self._push()

    def resume(self, received: int) -> None:
        """Send what the other end has not received, and what waits."""
        self._take_acknowledgement(received)
        self._is_resumed = True
        for number, (tag, part) in self._in_flight.items():
            self._post(tag, number, part)
        self._fill()
        self._push()

    def hold(self, stream: Stream) -> None:
        """Use a new connection to detect the end of the other process."""
        _close(self.idle)
        self.idle = stream

    def dismiss(self, stream: Stream | None = None) -> None:
        """Report to the other process that it is unknown, and close its connections."""
        self._stream = stream or self._stream
        self._post(DISMISSAL, 0, self.server)
        self._push()
        self.close()

    def read(self) -> None:
        """Handle what has arrived, and acknowledge it."""
        try:
            while self._stream is not None and self._stream.pull(self):
                pass
        except BrokenStreamError as exc:
            log.info("the connection to another launcher broke: %s", exc)
            _close(self._stream)
            self._stream, self._is_resumed = None, False
        if self._received > self._acknowledged:
            self._acknowledge()
        self._push()

    def read_idle(self) -> None:
        try:
            while self.idle is not None and self.idle.pull(_Greeting()):
                pass
        except BrokenStreamError as exc:
            _close(self.idle)
            self.idle = None
            if exc.ended:
                self._ended_at = awake()

    def done(self, tag: int, offset: int, length: int) -> None:
        self._note_received()
        kind = tag & 255
        if kind == HELLO:
            self.server = bytes(self.buffer[_ID_BYTES:])
            self.resume(offset)
        elif kind == RECEIVED:
            self._take_acknowledgement(offset)
            self._fill()
        elif kind == DISMISSAL:
            self.dismissed_by = bytes(self.buffer)
        elif kind == PART and offset == self._received + 1:
            self._received = offset
            body = self._lanes[tag & _BULK].join(bytes(self.buffer), bool(tag & _MORE))
            if body is not None:
                self.inbox.append(body)
        else:
            raise BrokenStreamError(f"got a record of kind {kind} and number {offset} out of order", altered=True)

    def _note_received(self) -> None:
        self.last_received_at = awake()
        if self._ended_at is not None and self.last_received_at - self._ended_at > _LAST_RECORDS_S:
            self._ended_at = None  # Something on the way has closed a connection.

    def _take_acknowledgement(self, received: int) -> None:
        for done in [sent for sent in self._in_flight if sent <= received]:
            self._bytes_in_flight -= len(self._in_flight.pop(done)[1])

    def tick(self, now: float) -> None:
        """Send a heartbeat if due; call it several times a second, with `awake`."""
        if now - self._wrote_at >= timeout("heartbeat") and not self._is_sending:
            self._acknowledge()
        self._push()

    def _acknowledge(self) -> None:
        self._acknowledged = self._received
        self._post(RECEIVED, self._received, b"")

    def _post(self, tag: int, offset: int, payload: bytes) -> None:
        self._wrote_at = awake()
        if self._stream is not None:
            self._stream.post(tag, offset, payload)

    def _push(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(BrokenStreamError):  # `read` finds it too.
                self._stream.push()

    @property
    def _is_sending(self) -> bool:
        return self._stream is not None and self._stream.sent != self._stream.posted

    def silent_s(self, now: float) -> float:
        return now - self.last_received_at

    @property
    def needs_connection(self) -> bool:
        """Whether a new connection for messages is needed."""
        return self._stream is None or self.silent_s(awake()) > _REDIAL * timeout("silence")

    @property
    def needs_idle(self) -> bool:
        return self._is_resumed and self.idle is None

    @property
    def gone(self) -> bool:
        """Whether the connection is broken or the process has ended; it may come back."""
        return self._stream is None or self._ended_at is not None

    @property
    def absent(self) -> bool:
        """Whether nothing connects it at present: it is gone or silent."""
        return self.gone or self.silent_s(awake()) > timeout("silence")

    def closed(self, now: float) -> bool:
        """Return whether the process has ended, as far as is known."""
        return self._ended_at is not None and now - self._ended_at > _RETURN_S

    def why_lost(self, now: float) -> str:
        """Return why the host is lost, empty if it is not."""
        if self.closed(now):
            return "disconnected without notice: was its launcher killed?"
        silent_s = self.silent_s(now)
        return f"sent no heartbeat for {silent_s:.1f} s" if silent_s > timeout("host") else ""

    def close(self) -> None:
        for stream in (self._stream, self.idle):
            _close(stream)
        self._stream = self.idle = None
        self._is_resumed = False


def _close(stream: Stream | None) -> None:
    if stream is not None:
        stream.close()


class _End:
    """What both ends share: a file descriptor that is readable when `receive` has work."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._epoll = select.epoll()
        self._epoll.register(opening.fileno(), select.EPOLLIN)
        # Streams, and what reads all that they have, by file descriptor.
        self._readers: dict[int, tuple[Stream, Callable[[], None]]] = {}

    @property
    def sockets(self) -> list[Any]:
        """The file descriptors to poll; call `receive` when one is readable."""
        return [] if self._epoll.closed else [self._epoll.fileno()]

    def poll(self, timeout_s: float, fds: Sequence[int] = ()) -> None:
        poller = select.poll()
        for fd in [*self.sockets, *fds]:
            poller.register(fd, select.POLLIN)
        poller.poll(timeout_s * 1e3)

    def _watch(self, stream: Stream, read: Callable[[], None]) -> None:
        """Call a function when a stream can be read or written; it must read all."""
        self._readers[stream.fileno()] = stream, read
        self._epoll.register(stream.fileno(), _EVENTS)

    def _read(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd in self._readers:
                self._readers[fd][1]()
        self._opening.step(awake())

    def close(self) -> None:
        if not self._epoll.closed:
            self._epoll.close()
            self._opening.close()
            for stream in [*self._opening.open.values(), *(stream for stream, _ in self._readers.values())]:
                stream.close()


class LinkServer(_End):
    """Host 0's end, with a `Peer` for each session that has ever connected."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        shown = f"[{host}]" if ":" in host else host
        try:
            self._listener = Listener(host, port, TOKEN)
        except PlatoonError as exc:
            raise ConfigurationError(
                f"cannot listen for the other hosts at {shown}:{port} ({exc.__cause__}): "
                "--rdzv-endpoint must name an address of this host, host 0, and a free port"
            ) from exc
        self.port = self._listener.address.port
        self.address = f"{shown}:{self.port}"
        super().__init__(Opening(self._listener, Caller(_FIRST_HOST, key, None), {}))
        self._id = secrets.token_bytes(_ID_BYTES)
        self._forgotten: set[bytes] = set()  # Sessions that are dismissed.
        self.peers: dict[bytes, Peer] = {}

    def receive(self) -> list[tuple[Peer, bytes]]:
        """Return the messages that have arrived, and their senders."""
        self._read()
        for stream in self._opening.open.values():
            self._watch(stream, functools.partial(self._greet, stream, _Greeting()))
        self._opening.open.clear()
        return [(peer, peer.inbox.popleft()) for peer in self.peers.values() for _ in range(len(peer.inbox))]

    def _greet(self, stream: Stream, greeting: _Greeting) -> None:
        try:
            stream.pull(greeting, 1)
        except BrokenStreamError:
            stream.close()
        if not greeting.kind:
            return
        session, server = bytes(greeting.buffer[:_ID_BYTES]), bytes(greeting.buffer[_ID_BYTES:])
        peer = self.peers.get(session)
        if peer is None:
            peer = Peer(session, self._id)
            # It belongs to an earlier job, or to a host that was replaced.
            if server != _NO_SERVER or session in self._forgotten:
                peer.dismiss(stream)
                return
            self.peers[session] = peer
        if greeting.kind == IDLE:
            peer.hold(stream)
        else:
            peer.connect(stream)
            peer.resume(greeting.received)
        read = peer.read_idle if greeting.kind == IDLE else peer.read
        self._readers[stream.fileno()] = stream, read
        read()

    def tick(self, now: float) -> None:
        for peer in self.peers.values():
            peer.tick(now)

    def drop_lost(self, now: float, kept: Container[bytes]) -> None:
        """Free the memory of launchers that were refused and have ended; keep these sessions."""
        for session, peer in [*self.peers.items()]:
            if session not in kept and peer.why_lost(now):
                self.peers.pop(session).close()

    def finish(self, peers: Iterable[Peer]) -> list[tuple[Peer, bytes]]:
        """Wait briefly until these have received all messages; return the messages that arrive during the wait."""
        deadline, received = awake() + timeout("end"), self.receive()
        while awake() < deadline and any(peer.in_flight and not peer.gone for peer in peers):
            self.poll(0.05)
            received += self.receive()
            self.tick(awake())
        return received

    def forget(self, peer: Peer) -> None:
        """Dismiss a process, now and whenever it connects again."""
        self._forgotten.add(peer.session)
        self.peers.pop(peer.session, None)
        peer.dismiss()

    def close(self) -> None:
        super().close()
        self._listener.close()


class LinkClient(_End):
    """The end of another host, which connects to host 0."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self.peer = Peer(secrets.token_bytes(_ID_BYTES), _NO_SERVER)
        self.inbox = self.peer.inbox
        self.connected = False  # Whether it ever was.
        number = int.from_bytes(self.peer.session[:4], "little") or 1
        address = Address(host, port, TOKEN)
        super().__init__(Opening(None, Caller(number, key, frozenset()), {_FIRST_HOST: address}))

    def receive(self) -> None:
        self._read()
        stream, peer = self._opening.open.pop(_FIRST_HOST, None), self.peer
        if stream is not None and peer.needs_connection:
            self.connected = True
            peer.connect(stream)
            self._watch(stream, peer.read)
        elif stream is not None and peer.needs_idle:
            stream.post(IDLE, 0, peer.session + peer.server)
            with contextlib.suppress(BrokenStreamError):  # `read_idle` finds it too.
                stream.push()
            peer.hold(stream)
            self._watch(stream, peer.read_idle)
        else:
            _close(stream)
        if not self.dismissed and (peer.needs_connection or peer.needs_idle):
            self._opening.call_again(_FIRST_HOST)

    @property
    def why(self) -> str:
        """Why the latest attempt to connect failed; empty if none has."""
        return self._opening.why().partition(": ")[2]

    def finish(self) -> None:
        """Wait briefly until host 0 has received all messages."""
        deadline = awake() + timeout("end")
        while self.peer.in_flight and not self.peer.gone and awake() < deadline:
            self.poll(0.05)
            self.receive()
            self.peer.tick(awake())

    @property
    def replaced(self) -> bool:
        """Whether the job continues without this host."""
        return bool(self.peer.dismissed_by) and self.peer.server in (self.peer.dismissed_by, _NO_SERVER)

    @property
    def dismissed(self) -> str:
        """What became of the job of a host 0 that does not know this one; empty if it does."""
        if not self.peer.dismissed_by:
            return ""
        return "continues without this host, which was replaced" if self.replaced else "is over: host 0 has restarted"

    @property
    def refused(self) -> bool:
        """Whether host 0 has another key."""
        return not self.connected and self._opening.wrong.get(_FIRST_HOST, 0) >= WRONG_PROOFS
