"""The two ends of every channel: the worker's and the controller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["ClientChannel", "Received", "ServerChannel"]


class Received(NamedTuple):
    """A request as it arrived.

    Attributes
    ----------
    peer : bytes
        Which connection it came from.
    request_id : bytes
        To be sent back with the answer; empty if the message was not even framed as a request.
    data : bytes
        The encoded message.
    """

    peer: bytes
    request_id: bytes
    data: bytes


class ClientChannel(Protocol):
    """The worker's end."""

    def request(self, data: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its answer.

        Raises
        ------
        CollectiveTimeoutError
            If there is no answer within ``timeout_s``.
        WorkerLostError
            If the controller ended.
        """
        ...

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        ...


class ServerChannel(Protocol):
    """The controller's end."""

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        """Sleep until requests arrive, one of the file descriptors can be read, or ``timeout_s`` is over.

        Returns
        -------
        requests : list of Received
        ready : set of int
            The file descriptors that can be read.
        """
        ...

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Send an answer; to a peer that is gone it is dropped."""
        ...

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        ...
