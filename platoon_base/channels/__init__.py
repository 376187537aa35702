"""The channels of the control plane: requests of workers and answers, over ZeroMQ or in-process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Received(NamedTuple):
    """A request; ``request_id`` is empty if the message was not framed as a request."""

    peer: bytes
    request_id: bytes
    data: bytes


class ClientChannel(Protocol):
    """The worker's end."""

    def request(self, data: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its answer.

        Raises `CollectiveTimeoutError` without an answer within ``timeout_s``, and
        `WorkerLostError` if the controller ended.
        """
        ...

    def close(self) -> None: ...


class ServerChannel(Protocol):
    """The controller's end."""

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        """Wait for requests or readable descriptors until the timeout; return both."""
        ...

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Send an answer; it is dropped if the peer has disconnected."""
        ...

    def close(self) -> None: ...
