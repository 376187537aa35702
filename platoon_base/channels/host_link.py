"""Connections between launchers: reliable, ordered messages; detects silent peers.

ZeroMQ with CURVE encrypts, authenticates and reconnects. It loses messages in transit when a
connection breaks, so they are numbered (`Peer`) and resent until acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from platoon_base.channels.host_peer import MAX_PART_BYTES, NO_PEER, Frame, Peer
from platoon_base.channels.keys import Keys, ServerKeys, ZapHandler, admit_only, use_keys
from platoon_base.channels.lifeline import Lifeline, Lifelines
from platoon_base.errors import ConfigurationError
from platoon_base.links.handshake import Address
from platoon_base.system.process import awake

__all__ = ["MAX_UNIDENTIFIED", "LinkClient", "LinkServer"]

log = logging.getLogger(__name__)

MAX_UNIDENTIFIED = 256  # Connections without a message; beyond this number the oldest are closed.
_RECONNECT_MS = 100
_CONNECT_MS, _TRIES = 500, 5  # Timeouts double for 5 tries, then restart.
_ZMQ_HEARTBEAT_MS, _ZMQ_TIMEOUT_MS = 500, 3000  # ZeroMQ reconnects sooner than TCP retransmits.
_MAX_FRAME_BYTES = 2 * MAX_PART_BYTES  # Memory that each stranger can make this process reserve.
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
# Number of failures, and their duration, without an earlier success.
_FAILURES, _FAILING_S = 5, 1.5
_WARN_EVERY_S = 60.0
_SRCFD = 2  # ZMQ_SRCFD of zmq.h: the file descriptor of a message.


def _prepare(socket: zmq.Socket[bytes], address: str) -> None:
    socket.ipv6 = "[" in address
    socket.linger = 500
    socket.sndtimeo = 0
    socket.heartbeat_ivl, socket.heartbeat_timeout = _ZMQ_HEARTBEAT_MS, _ZMQ_TIMEOUT_MS
    socket.maxmsgsize = _MAX_FRAME_BYTES


def _poll(sockets: Sequence[Any], timeout_s: float, fds: Sequence[int]) -> None:
    poller = zmq.Poller()
    for each in [*sockets, *fds]:
        poller.register(each, zmq.POLLIN)
    poller.poll(int(timeout_s * 1e3))


def _descriptor(frame: Any) -> int:
    """Return the file descriptor that a frame came by; -1 if the connection is closed."""
    try:
        return int(frame.get(_SRCFD))
    except zmq.ZMQError:
        return -1


class LinkServer:
    """Host 0's end, with a `Peer` for each session that has ever sent something."""

    def __init__(self, address: str, keys: ServerKeys) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._zap_handler: ZapHandler | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._lifelines: Lifelines | None = None
        self._id = secrets.token_bytes(16)
        self._routes: dict[bytes, bytes] = {}
        self._fds: dict[int, bytes] = {}  # Sessions by the file descriptor of their connection.
        # Connections without a message, by file descriptor, the oldest first.
        self._unidentified: dict[int, None] = {}
        self._forgotten: set[bytes] = set()  # Sessions that are dismissed.
        self._next_warning = 0.0
        self.peers: dict[bytes, Peer] = {}
        try:
            _prepare(self._socket, address)
            self._zap_handler = admit_only(self._socket, self._context, keys)
            self._socket.maxmsgsize = _MAX_FRAME_BYTES
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED)
            self._socket.bind(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(
                f"cannot listen for the other hosts at {address} ({exc}): --rdzv-endpoint must "
                "name an address of this host, host 0, and a free port"
            ) from exc
        self.address = os.fsdecode(cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT))).rstrip("\0")
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        self._port = int(port)
        self._lifelines = Lifelines(host.strip("[]"), self.peers)

    @property
    def lifeline(self) -> tuple[int, str]:
        """The port and the token for lifelines, see `LinkClient.hold`; the port is 0 without."""
        return (0, "") if self._lifelines is None else (self._lifelines.port, self._lifelines.token.hex())

    @property
    def sockets(self) -> list[Any]:
        """The sockets and file descriptors to poll; call `receive` when one is readable."""
        if self._zap_handler is None or self._lifelines is None:
            return []
        return [self._socket, self._zap_handler.socket, self._monitor, *self._lifelines.fds]

    def poll(self, timeout_s: float, fds: Sequence[int] = ()) -> None:
        _poll(self.sockets, timeout_s, fds)

    def receive(self) -> list[tuple[bytes, bytes]]:
        if self._zap_handler is not None:
            self._zap_handler.answer()
        self._note_events()
        messages = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            route, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            frame = Frame.decode(frames[0].bytes) if len(frames) == 1 else None
            if frame is None:
                continue
            body = self._take(route.bytes, _descriptor(frames[0]), frame)
            if body is not None:
                messages.append((frame.session, body))
        if self._lifelines is not None:
            self._lifelines.step()
        return messages

    def _take(self, route: bytes, fd: int, frame: Frame) -> bytes | None:
        session = frame.session
        self._unidentified.pop(fd, None)
        peer = self.peers.get(session)
        if peer is None:
            if (
                frame.server != NO_PEER or session in self._forgotten
            ):  # It belongs to an earlier job, or to a host that was replaced.
                self._send(route, Frame.dismissal(session, self._id).encode())
                return None
            if frame.number != 1:
                return None
            peer = self.peers[session] = Peer(session, self._id, lambda data: self._write(session, data))
        is_new = self._routes.get(session) != route
        self._routes[session] = route
        self._fds[fd] = session
        message = peer.take(frame)
        if is_new:
            peer.send_again(awake())
        return message

    def _write(self, session: bytes, data: bytes) -> None:
        self._send(self._routes[session], data)

    def _send(self, route: bytes, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # It is resent.
            self._socket.send_multipart([route, data], zmq.NOBLOCK)

    def _note_events(self) -> None:
        monitor = self._monitor
        while monitor is not None and monitor.poll(0):
            event = recv_monitor_message(monitor)
            if event["event"] & _FAILED:
                self._note_unidentified()
                continue
            fd = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._unidentified[fd] = None
                continue
            self._unidentified.pop(fd, None)
            peer = self.peers.get(self._fds.pop(fd, b""))
            if peer is not None:
                peer.broke(awake())
        while len(self._unidentified) > MAX_UNIDENTIFIED:
            fd = next(iter(self._unidentified))
            del self._unidentified[fd]
            self._disconnect(fd)

    def _disconnect(self, fd: int) -> None:
        """Close a connection of ZeroMQ, unless the descriptor has been reused."""
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=os.dup(fd))
            with connection:
                if connection.getsockname()[1] == self._port:
                    connection.shutdown(socket.SHUT_RDWR)

    def _note_unidentified(self) -> None:
        now = awake()
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_S
            log.warning("refused a connection to %s: it does not have the key of this user's jobs", self.address)

    def tick(self, now: float) -> None:
        for peer in self.peers.values():
            if not peer.closed(now):
                peer.tick(now)

    def forget(self, session: bytes) -> None:
        """Send nothing more to a session, and dismiss it if it is received again."""
        self._forgotten.add(session)
        self.peers.pop(session, None)
        self._routes.pop(session, None)

    def close(self) -> None:
        """Close the socket; recent messages have half a second to be sent."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket.close()
        if self._lifelines is not None:
            self._lifelines.close()
        if self._zap_handler is not None:
            self._zap_handler.close()
        self._context.term()


class LinkClient:
    """The end of another host; it connects to host 0.

    ``inbox`` has received messages that are not consumed. ``dismissed`` describes the job of a host
    0 that does not know this one, or is empty; with ``replaced`` that job continues.
    """

    def __init__(self, address: str, keys: Keys) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self.connected = False
        self._failures, self._failing_since, self._tries = 0, 0.0, 0
        self._address = cast(str, os.fsencode(address))
        self.inbox: deque[bytes] = deque()
        self.dismissed, self.replaced = "", False
        self._host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        self._lifeline: Lifeline | None = None
        self.peer = Peer(secrets.token_bytes(16), NO_PEER, self._write)
        _prepare(self._socket, address)
        self._socket.immediate = 1  # Nothing is queued without a connection.
        self._socket.reconnect_ivl = _RECONNECT_MS
        use_keys(self._socket, keys)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECT_RETRIED | _FAILED
        )
        try:
            self._connect()
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(f"cannot connect to {address} ({exc}): --rdzv-endpoint must be HOST:PORT") from exc

    @property
    def sockets(self) -> list[Any]:
        """The sockets and file descriptors to poll; call `receive` when one is readable."""
        return [self._socket, self._monitor, *([] if self._lifeline is None else self._lifeline.fds)]

    def poll(self, timeout_s: float, fds: Sequence[int] = ()) -> None:
        _poll(self.sockets, timeout_s, fds)

    def receive(self) -> None:
        self._note_events()
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frame = Frame.decode(self._socket.recv(zmq.NOBLOCK))
            if frame is not None and frame.session == self.peer.session:
                self._take(frame)
        if self._lifeline is not None:
            self._lifeline.step()

    def hold(self, port: int, token: str) -> None:
        """Connect to host 0's port for lifelines: each side then detects the other's end."""
        if self._lifeline is None:
            self._lifeline = Lifeline(Address(self._host, port, bytes.fromhex(token)), self.peer)

    def _take(self, frame: Frame) -> None:
        peer = self.peer
        if frame.dismisses:
            self.replaced = peer.server in (frame.server, NO_PEER)
            why = (
                "continues without this host, which was replaced" if self.replaced else "is over: host 0 has restarted"
            )
            self.dismissed = why
            return
        if peer.server == NO_PEER:
            peer.server = frame.server
        if frame.server == peer.server:
            body = peer.take(frame)
            if body is not None:
                self.inbox.append(body)

    def _connect(self) -> None:
        """Connect with the timeout of this try; the longest suffices for a round trip of 2 s."""
        self._socket.connect_timeout = _CONNECT_MS << self._tries % _TRIES
        self._socket.connect(self._address)

    def _connect_longer(self) -> None:
        self._tries += 1
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._address)
        self._connect()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # It is resent.
            self._socket.send(data, zmq.NOBLOCK)

    def _note_events(self) -> None:
        while self._monitor.poll(0):
            event, now = recv_monitor_message(self._monitor)["event"], awake()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected, self._tries = True, 0
                self.peer.send_again(now)
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self._connect_longer()
            elif event == zmq.EVENT_DISCONNECTED:
                self.peer.broke(now)
            else:
                self._failures += 1
                self._failing_since = self._failing_since or now

    @property
    def refused(self) -> bool:
        """Whether host 0 has another key."""
        # A few failures may come from a launcher that is ending, or flooded with connections.
        since = self._failing_since or math.inf
        return not self.connected and self._failures >= _FAILURES and awake() - since > _FAILING_S

    def close(self) -> None:
        """Close the socket; recent messages have half a second to be sent."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        if self._lifeline is not None:
            self._lifeline.close()
        self._socket.close()
        self._context.term()
