"""Idle links between launchers: each detects the end of the other's process.

When a process ends, its kernel closes its connections in order (FIN). A network cut, a firewall or
a machine without power cause silence or a reset instead. Connections that carry messages cannot
tell both apart: a process that ends with unread messages resets them. Both sides authenticate by
the handshake of links, with a token from the encrypted connection of the launchers, so the end of a
stranger's connection means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from platoon_base.channels.host_peer import Peer
from platoon_base.errors import PlatoonError
from platoon_base.links.handshake import Address, Caller, Listener, Opening
from platoon_base.links.stream import BrokenStreamError, Stream
from platoon_base.system.process import awake

__all__ = ["Lifeline", "Lifelines"]

log = logging.getLogger(__name__)

_FIRST_HOST = 0  # Other launchers derive their number in handshakes from the session.


def _number(session: bytes) -> int:
    return int.from_bytes(session[:4], "little") or 1


class _Silent:
    """Receives nothing: no record is expected on a lifeline."""

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        raise BrokenStreamError("got a record, and expected none")

    def done(self, tag: int, offset: int, length: int) -> None:
        raise BrokenStreamError("got a record, and expected none")


def _is_open(stream: Stream, peer: Peer | None) -> bool:
    """Return whether a link is open; record if the other process has ended."""
    try:
        stream.pull(_Silent())
    except BrokenStreamError as exc:
        stream.close()
        if exc.ended and peer is not None:
            peer.ended(awake())
        return False
    return True


class Lifelines:
    """Host 0's end; the system chooses the port, which is 0 if this host cannot listen."""

    def __init__(self, address: str, peers: Mapping[bytes, Peer]) -> None:
        self._peers = peers
        self._sessions: dict[int, bytes] = {}
        self._open: dict[int, Stream] = {}
        self._listener: Listener | None = None
        self._opening: Opening | None = None
        self.port, self.token = 0, b""
        try:
            self._listener = Listener(address)
        except PlatoonError as exc:
            log.warning("the end of another host will be noticed late: %s", exc)
        else:
            self._opening = Opening(self._listener, Caller(_FIRST_HOST, b"", self._sessions.keys()), {})
            _, self.port, self.token = self._listener.address

    @property
    def fds(self) -> list[int]:
        """The descriptors to poll; call `step` when one is readable and several times a second."""
        opening = [] if self._opening is None else [self._opening.fileno()]
        return [*opening, *(stream.fileno() for stream in self._open.values())]

    def step(self) -> None:
        """Advance the handshakes, and record which processes have closed their links."""
        if self._opening is None:
            return
        self._sessions.clear()
        self._sessions.update((_number(session), session) for session in self._peers)
        self._opening.step(awake())
        for number, stream in self._opening.open.items():
            if number in self._open:  # The old link was reset, which is not detected here yet.
                self._open[number].close()
            self._open[number] = stream
            self._peers[self._sessions[number]].has_lifeline = True
        self._opening.open.clear()
        for number, stream in list(self._open.items()):
            if not _is_open(stream, self._peers.get(self._sessions.get(number, b""))):
                del self._open[number]

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()
        if self._opening is not None:
            self._opening.close()
            self._opening = None
        if self._listener is not None:
            self._listener.close()


class Lifeline:
    """The end of another host: it connects to host 0 if the port is not 0, and reconnects."""

    def __init__(self, address: Address, peer: Peer) -> None:
        self._peer = peer
        self._stream: Stream | None = None
        self._opening: Opening | None = None
        if address.port:
            mine = Caller(_number(peer.session), b"", frozenset())
            self._opening = Opening(None, mine, {_FIRST_HOST: address})

    @property
    def fds(self) -> list[int]:
        return [] if self._stream is None else [self._stream.fileno()]

    def step(self) -> None:
        """Connect if due, and handle the end of the link."""
        if self._opening is None:
            return
        self._opening.step(awake())
        found = self._opening.open.pop(_FIRST_HOST, None)
        if found is not None:
            self._stream, self._peer.has_lifeline = found, True
        if self._stream is not None and not _is_open(self._stream, self._peer):
            self._stream = None
            self._opening.call_again(_FIRST_HOST)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._opening is not None:
            self._opening.close()
        self._stream = self._opening = None
