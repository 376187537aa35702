"""The controller's channels to the workers of all hosts: its own, and those that deputies relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from platoon_base.channels.base import Received, ServerChannel
from platoon_base.coordination.roster import divided_peer

__all__ = ["RelayServer", "Relayed"]


class Relayed(Protocol):
    """The other hosts; see `platoon_base.multihost.hosts.HostTable`."""

    @property
    def sockets(self) -> list[Any]:
        """The sockets and file descriptors to poll."""
        ...

    @property
    def sleep_s(self) -> float:
        """How long to sleep at most, in seconds."""
        ...

    def serve(self) -> list[Received]:
        """Handle arrived messages, and send what is due; return the requests of workers."""
        ...

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Queue an answer for a worker."""
        ...

    def flush(self) -> None:
        """Send the queued answers."""
        ...


class RelayServer:
    """The controller's end of the channels to workers of all hosts; see `ServerChannel`.

    Parameters
    ----------
    local : ServerChannel
        For those of this host.
    hosts : Relayed
        For the others.
    """

    def __init__(self, local: ServerChannel, hosts: Relayed) -> None:
        self._local = local
        self._hosts = hosts

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        """Sleep until a request of any host arrives; it may return before the time is over, with nothing."""
        self._hosts.flush()
        sockets = self._hosts.sockets
        requests, ready = self._local.wait(min(timeout_s, self._hosts.sleep_s), [*fds, *sockets])
        requests += self._hosts.serve()
        return requests, ready.difference(sockets)

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Send an answer; to a peer that is gone it is dropped."""
        if divided_peer(peer)[0]:
            self._hosts.reply(peer, request_id, data)
        else:
            self._local.reply(peer, request_id, data)

    def close(self) -> None:
        """Send what waits for other hosts, and close the channel to the workers of this one."""
        self._hosts.flush()
        self._local.close()
