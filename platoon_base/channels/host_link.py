"""Connections between the launchers of a job's hosts: ordered messages that arrive once, and who is silent.

ZeroMQ with CURVE, since it encrypts, admits only those with the key and connects again by itself. It loses what was
under way when a connection broke, so messages are numbered here, and sent again until they are acknowledged; repeats
are dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from platoon_base.channels.keys import Doorkeeper, Keys, ServerKeys, admit_only, use_keys
from platoon_base.errors import ConfigurationError

__all__ = ["HEARTBEAT_S", "SILENT_S", "LinkClient", "LinkServer", "Peer"]

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
SILENT_S = 2.0  # without a heartbeat, after which a host counts as silent
_BROKEN_S = 1.0  # that a connection which the other end has closed has to come back
_FRESH_S = 1.0  # a connection that broke so soon after a heartbeat was closed by the other end, not cut
_SEND_AGAIN_S = 2.0
_AT_ONCE = 64  # messages sent again in one go
_RECONNECT_MS, _CONNECT_MS = 100, 500
_ZMQ_HEARTBEAT_MS, _ZMQ_TIMEOUT_MS = 500, 1800  # after which ZeroMQ makes a connection anew, faster than TCP goes on
_MAX_BYTES = 1 << 24
_HEADER = struct.Struct("<16sQQ")  # session, number (0 of a heartbeat), the latest number received
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_FAILURES = 5  # in a row, without a success before
_WARN_EVERY_S = 60.0
_SRCFD = 2  # ZMQ_SRCFD of zmq.h: the file descriptor that a message came by


class Peer:
    """The other end of a link: numbers what is sent to it, orders what comes from it, and knows when it was heard.

    Parameters
    ----------
    session : bytes, shape (16,)
        Made by the end that connects, for as long as its process lives.
    write : callable
        Sends one frame if that is possible now, and else drops it.
    """

    def __init__(self, session: bytes, write: Callable[[bytes], None]) -> None:
        now = time.monotonic()
        self.session = session
        self.heard_at = self._progress_at = self._wrote_at = self._ticked_at = now
        self._broken_at: float | None = None
        self._write = write
        self._sent = self._resent = 0  # the latest message sent, and the latest of those sent again
        self._received = 0
        self._unacknowledged: dict[int, bytes] = {}

    def send(self, body: bytes) -> None:
        """Send a message; it arrives once, in order, unless the other end is lost."""
        self._sent += 1
        if not self._unacknowledged:
            self._progress_at = time.monotonic()
        self._unacknowledged[self._sent] = body
        self._put(self._sent, body)

    @property
    def in_flight(self) -> int:
        """Number of messages that were not acknowledged yet."""
        return len(self._unacknowledged)

    def take(self, number: int, acknowledged: int, body: bytes) -> bytes | None:
        """Take a frame that has come; returns the message in it, None if there is none or it is a repeat."""
        self.heard_at = time.monotonic()
        self._broken_at = None
        for done in [sent for sent in self._unacknowledged if sent <= acknowledged]:
            del self._unacknowledged[done]
            self._progress_at = self.heard_at
        if self._resent and acknowledged >= self._resent:
            self.send_again(self.heard_at)  # the next of many
        if number != self._received + 1:
            return None
        self._received = number
        return body

    def tick(self, now: float) -> None:
        """Send a heartbeat if it is time, and again what was not acknowledged for long; call it several times a second.

        While this process itself stood still (SIGSTOP, a suspended machine) it could hear nothing.
        """
        if now - self._ticked_at > _FRESH_S:
            self.heard_at += now - self._ticked_at
        self._ticked_at = now
        if self._unacknowledged and now - self._progress_at > _SEND_AGAIN_S:
            self.send_again(now)
        elif now - self._wrote_at >= HEARTBEAT_S:
            self._put(0, b"")

    def send_again(self, now: float) -> None:
        """Send again what was not acknowledged, as on a new connection."""
        self._progress_at, self._resent = now, 0
        for number, body in list(self._unacknowledged.items())[:_AT_ONCE]:
            self._put(number, body)
            self._resent = number

    def broke(self, now: float) -> None:
        """Take note that the connection has broken; by a cut that is noticed by silence only."""
        if self._broken_at is None and now - self.heard_at < _FRESH_S:
            self._broken_at = now

    def acknowledge(self) -> None:
        """Acknowledge what has come, at once."""
        self._put(0, b"")

    def silent_s(self, now: float) -> float:
        """Return for how long nothing came, in seconds."""
        return now - self.heard_at

    @property
    def gone(self) -> bool:
        """Whether the other end has closed the connection; it may come back."""
        return self._broken_at is not None

    def closed(self, now: float) -> bool:
        """Tell whether the other end has closed the connection and has not come back."""
        return self._broken_at is not None and now - self._broken_at > _BROKEN_S

    def _put(self, number: int, body: bytes) -> None:
        self._wrote_at = time.monotonic()
        self._write(_HEADER.pack(self.session, number, self._received) + body)


def _prepare(socket: zmq.Socket[bytes], address: str) -> None:
    socket.ipv6 = "[" in address
    socket.linger = 500
    socket.sndtimeo = 0
    socket.heartbeat_ivl, socket.heartbeat_timeout = _ZMQ_HEARTBEAT_MS, _ZMQ_TIMEOUT_MS
    socket.maxmsgsize = _MAX_BYTES


def _poll(sockets: Sequence[Any], timeout_s: float, fds: Sequence[int]) -> None:
    poller = zmq.Poller()
    for each in [*sockets, *fds]:
        poller.register(each, zmq.POLLIN)
    poller.poll(int(timeout_s * 1e3))


class LinkServer:
    """The end of the first host: every other host connects to it.

    Parameters
    ----------
    address : str
        To bind to, such as ``tcp://10.0.0.1:29400``.
    keys : ServerKeys

    Attributes
    ----------
    peers : dict of bytes to Peer
        By session: all that have ever sent something.
    address : str
        The address that it listens at, with the port.
    """

    def __init__(self, address: str, keys: ServerKeys) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._doorkeeper: Doorkeeper | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._routes: dict[bytes, bytes] = {}  # by session
        self._fds: dict[int, bytes] = {}  # sessions by the file descriptor of their connection
        self._next_warning = 0.0
        self.peers: dict[bytes, Peer] = {}
        try:
            _prepare(self._socket, address)
            self._doorkeeper = admit_only(self._socket, self._context, keys)
            self._socket.maxmsgsize = _MAX_BYTES
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | _FAILED)
            self._socket.bind(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(
                f"cannot listen for the other hosts at {address} ({exc}): --rdzv-endpoint must name an address of this "
                "host, the first one, and a port that is free"
            ) from exc
        self.address = os.fsdecode(cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT))).rstrip("\0")

    @property
    def sockets(self) -> list[Any]:
        """The sockets to poll; call `receive` when one of them can be read."""
        return [self._socket, self._doorkeeper.socket, self._monitor] if self._doorkeeper is not None else []

    def poll(self, timeout_s: float, fds: Sequence[int] = ()) -> None:
        """Sleep until something can be received, one of the file descriptors can be read, or the time is over."""
        _poll(self.sockets, timeout_s, fds)

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return the messages that have come, each with its session."""
        if self._doorkeeper is not None:
            self._doorkeeper.answer()
        messages = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            route, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(frames) != 1 or len(frames[0].buffer) < _HEADER.size:
                continue
            data = frames[0].bytes
            session, number, acknowledged = _HEADER.unpack_from(data)
            body = self._take(route.bytes, frames[0], session, number, acknowledged, data[_HEADER.size :])
            if body is not None:
                messages.append((session, body))
        self._note_broken()
        return messages

    def _take(
        self, route: bytes, frame: Any, session: bytes, number: int, acknowledged: int, body: bytes
    ) -> bytes | None:
        peer = self.peers.get(session)
        if peer is None:
            peer = self.peers[session] = Peer(session, lambda data: self._write(session, data))
        is_new = self._routes.get(session) != route
        self._routes[session] = route
        with contextlib.suppress(zmq.ZMQError):  # the connection is gone
            self._fds[int(frame.get(_SRCFD))] = session
        message = peer.take(number, acknowledged, body)
        if is_new:
            peer.send_again(time.monotonic())
        return message

    def _write(self, session: bytes, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is sent again
            self._socket.send_multipart([self._routes[session], data], zmq.NOBLOCK)

    def _note_broken(self) -> None:
        monitor = self._monitor
        while monitor is not None and monitor.poll(0):
            event = recv_monitor_message(monitor)
            if event["event"] & _FAILED:
                self._note_stranger()
                continue
            peer = self.peers.get(self._fds.pop(int(event["value"]), b""))
            if peer is not None:
                peer.broke(time.monotonic())

    def _note_stranger(self) -> None:
        """Warn of a connection without the key; seldom, since there may be many."""
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_S
            log.warning("refused a connection to %s: it does not have the key of this user's jobs", self.address)

    def tick(self, now: float) -> None:
        """Send what is due."""
        for peer in self.peers.values():
            if not peer.closed(now):
                peer.tick(now)

    def forget(self, session: bytes) -> None:
        """Send nothing more to a session."""
        self.peers.pop(session, None)
        self._routes.pop(session, None)

    def close(self) -> None:
        """Close the socket, after half a second for what was just sent."""
        self._socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._context.term()


class LinkClient:
    """The end of another host, which connects to the first one.

    Parameters
    ----------
    address : str
        Such as ``tcp://10.0.0.1:29400``.
    keys : Keys

    Attributes
    ----------
    peer : Peer
        The first host.
    refused : bool
        Whether nobody there speaks with this host: the first host has another key.
    """

    def __init__(self, address: str, keys: Keys) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self.connected = False
        self._failures = 0
        self.peer = Peer(secrets.token_bytes(16), self._write)
        _prepare(self._socket, address)
        self._socket.immediate = 1  # nothing is queued where there is no connection
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._socket.connect_timeout = _CONNECT_MS  # or TCP would ask in intervals that double
        use_keys(self._socket, keys)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED
        )
        try:
            self._socket.connect(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(f"cannot connect to {address} ({exc}): --rdzv-endpoint takes HOST:PORT") from exc

    @property
    def sockets(self) -> list[Any]:
        """The sockets to poll; call `receive` when one of them can be read."""
        return [self._socket, self._monitor]

    def poll(self, timeout_s: float, fds: Sequence[int] = ()) -> None:
        """Sleep until something can be received, one of the file descriptors can be read, or the time is over."""
        _poll(self.sockets, timeout_s, fds)

    def receive(self) -> list[bytes]:
        """Return the messages that have come."""
        self._note_events()
        messages = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            data = self._socket.recv(zmq.NOBLOCK)
            if len(data) < _HEADER.size:
                continue
            _, number, acknowledged = _HEADER.unpack_from(data)
            body = self.peer.take(number, acknowledged, data[_HEADER.size :])
            if body is not None:
                messages.append(body)
        return messages

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is sent again
            self._socket.send(data, zmq.NOBLOCK)

    def _note_events(self) -> None:
        while self._monitor.poll(0):
            event, now = recv_monitor_message(self._monitor)["event"], time.monotonic()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                self.peer.send_again(now)
            elif event == zmq.EVENT_DISCONNECTED:
                self.peer.broke(now)
            else:
                self._failures += 1

    @property
    def refused(self) -> bool:
        """See above. One failure may be that of a launcher which is just ending."""
        return not self.connected and self._failures >= _FAILURES

    def close(self) -> None:
        """Close the socket, after half a second for what was just sent."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()
