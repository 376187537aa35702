"""The controller's channels to the workers of all hosts: its own, and those that deputies relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from platoon_base.channels.base import Received, ServerChannel
from platoon_base.coordination.roster import divided_peer


class Relayed(Protocol):
    """The other hosts; see `platoon_base.multihost.hosts.HostTable`."""

    @property
    def sockets(self) -> list[Any]: ...

    @property
    def sleep_s(self) -> float: ...

    def serve(self) -> list[Received]:
        """Handle messages and send what is due; return the requests of workers."""
        ...

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None: ...

    def flush(self) -> None: ...


class RelayServer:
    """The controller's channels to workers of this host and of others; see `ServerChannel`."""

    def __init__(self, local: ServerChannel, hosts: Relayed) -> None:
        self._local = local
        self._hosts = hosts

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        self._hosts.flush()
        sockets = self._hosts.sockets
        requests, ready = self._local.wait(min(timeout_s, self._hosts.sleep_s), [*fds, *sockets])
        requests += self._hosts.serve()
        return requests, ready.difference(sockets)

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        if divided_peer(peer)[0]:
            self._hosts.reply(peer, request_id, data)
        else:
            self._local.reply(peer, request_id, data)

    def close(self) -> None:
        """Send queued messages to other hosts, and close the channel to the workers of this one."""
        self._hosts.flush()
        self._local.close()
