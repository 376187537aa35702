"""Idle TCP connections between launchers, by which each learns that the other's process has ended.

When a process ends, in any way, its kernel closes its connections in order (FIN). A network that is cut, a firewall or
a machine without power do not: what they do to a connection is silence or a reset. Connections that carry messages
cannot tell both apart, since a process that ends with unread messages resets them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import time
from collections.abc import Mapping

from platoon_base.channels.host_peer import Peer

__all__ = ["MAX_UNIDENTIFIED", "Lifeline", "Lifelines"]

log = logging.getLogger(__name__)

MAX_UNIDENTIFIED = 64
_SESSION_BYTES = 16
_RETRY_S = 0.5
_BACKLOG = 256
_IDLE_S, _INTERVAL_S = 30, 10  # between probes of TCP, so that no router on the way forgets the connection
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)


def _read(sock: socket.socket, size: int) -> bytes | None:
    """Return what has come: empty at the end of the stream, None if nothing has; raises `OSError` after a reset."""
    try:
        return sock.recv(size)
    except BlockingIOError:
        return None


class Lifelines:
    """The end of the first host.

    Parameters
    ----------
    address : str
        To listen at; the system chooses the port.
    peers : dict of bytes to Peer
        The other ends by session, which their connections begin with: only they know it.

    Attributes
    ----------
    port : int
        0 if this host cannot listen.
    """

    def __init__(self, address: str, peers: Mapping[bytes, Peer]) -> None:
        self._peers = peers
        self._unidentified: dict[socket.socket, bytes] = {}  # sessions as far as they have come, the oldest first
        self._known: dict[socket.socket, bytes] = {}
        self._listener: socket.socket | None = None
        self.port = 0
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        except OSError as exc:
            log.warning("cannot listen at %s for the ends of other hosts (%s): they are noticed later", address, exc)
        else:
            self._listener.setblocking(False)
            self.port = int(self._listener.getsockname()[1])

    @property
    def fds(self) -> list[int]:
        """The file descriptors to poll; call `step` when one of them can be read."""
        listening = [] if self._listener is None else [self._listener]
        return [sock.fileno() for sock in (*listening, *self._unidentified, *self._known)]

    def step(self) -> None:
        """Take connections, and note the ends of those that have closed theirs."""
        with contextlib.suppress(OSError):  # none is there, or no descriptor is left
            while self._listener is not None:
                sock, _ = self._listener.accept()
                _prepare(sock)
                self._unidentified[sock] = b""
                self._read_session(sock, b"")
                if len(self._unidentified) > MAX_UNIDENTIFIED:
                    self._drop(next(iter(self._unidentified)))
        for sock, begin in list(self._unidentified.items()):
            self._read_session(sock, begin)
        for sock, session in list(self._known.items()):
            try:
                ended = _read(sock, 1) == b""
            except OSError:
                self._drop(sock)
                continue
            if ended:
                self._drop(sock)
                if session in self._peers:
                    self._peers[session].ended(time.monotonic())

    def _read_session(self, sock: socket.socket, begin: bytes) -> None:
        try:
            data = _read(sock, _SESSION_BYTES - len(begin))
        except OSError:
            data = b""
        if data is None:
            return
        session = begin + data
        if not data or (len(session) == _SESSION_BYTES and session not in self._peers):
            self._drop(sock)
        elif len(session) == _SESSION_BYTES:
            del self._unidentified[sock]
            self._known[sock] = session
            self._peers[session].has_lifeline = True
        else:
            self._unidentified[sock] = session

    def _drop(self, sock: socket.socket) -> None:
        sock.close()
        self._unidentified.pop(sock, None)
        self._known.pop(sock, None)

    def close(self) -> None:
        """Close all connections."""
        for sock in (*self._unidentified, *self._known):
            sock.close()
        self._unidentified, self._known = {}, {}
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Lifeline:
    """The end of another host, which connects to the first one, and connects again after a reset.

    Parameters
    ----------
    address : str
    port : int
        Of the first host; 0 for none.
    peer : Peer
        The first host.
    """

    def __init__(self, address: str, port: int, peer: Peer) -> None:
        self._at = (address, port)
        self._peer = peer
        self._sock: socket.socket | None = None
        self._connected = False
        self._next_try = 0.0

    @property
    def fds(self) -> list[int]:
        """The file descriptors to poll; call `step` when one of them can be read, and several times a second."""
        return [self._sock.fileno()] if self._sock is not None and self._connected else []

    def step(self, now: float) -> None:
        """Connect if that is due, and take the end of the connection."""
        if not self._at[1]:
            return
        try:
            if self._sock is None and now >= self._next_try:
                self._next_try = now + _RETRY_S
                self._sock = socket.socket(socket.AF_INET6 if ":" in self._at[0] else socket.AF_INET)
                _prepare(self._sock)
            if self._sock is not None and not self._connected:
                self._connect(self._sock)
            if self._sock is not None and self._connected and _read(self._sock, 1) == b"":
                self.close()
                self._peer.ended(now)
        except OSError:  # it is tried again
            self.close()

    def _connect(self, sock: socket.socket) -> None:
        found = sock.connect_ex(self._at)
        if found in (0, errno.EISCONN):
            sock.send(self._peer.session)  # an empty buffer has room for it
            self._connected = self._peer.has_lifeline = True
        elif found not in _UNDER_WAY:
            raise OSError(found, "cannot connect")

    def close(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._sock.close()
        self._sock, self._connected = None, False
