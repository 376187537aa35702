"""Control messages over ZeroMQ: ROUTER at the controller, DEALER at each worker.

A request is one frame, since each frame costs a microsecond or two on either side: 8 bytes that name the request, and
the encoded message. Its answer begins with the same 8 bytes; zeros answer what was not framed so.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence

import zmq

from platoon_base.channels.base import Received
from platoon_base.errors import CollectiveTimeoutError, WorkerLostError
from platoon_base.messages import MAX_BYTES

__all__ = ["ZmqClient", "ZmqServer"]

_LOOK_S = 0.25  # how often a waiting client looks whether the controller still lives
_BATCH = 256  # requests taken from the socket in one go, so that children and timers get their turn
_ID_BYTES = 8


def _milliseconds(seconds: float) -> int:
    """Round up, so that a poll does not end just before a deadline, and never give the -1 that means for ever."""
    return max(0, math.ceil(seconds * 1e3))


class ZmqClient:
    """The worker's end.

    Parameters
    ----------
    address : str
        Such as ``ipc:///path``.
    controller_alive : callable
        Tells whether waiting still makes sense.

    Attributes
    ----------
    spin_s : float
        How long a request looks for its answer before it sleeps. Waking up takes longer than the answer to a plain
        request, so it pays where a core is free for it; where none is, it keeps the controller from answering.
    """

    def __init__(self, address: str, controller_alive: Callable[[], bool]) -> None:
        self._alive = controller_alive
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._receive_timeout_ms = -1
        self.spin_s = 0.0
        self._socket.connect(address)

    def request(self, data: bytes, timeout_s: float) -> bytes:
        """See `ClientChannel.request`."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._context.closed:
                raise WorkerLostError("this connection is closed; a worker cannot be used after close()")
            request_id = next(self._ids).to_bytes(_ID_BYTES, "little")
            self._socket.send(request_id + data)
            while True:
                remaining = deadline - time.monotonic()
                answer = self._receive(min(remaining, _LOOK_S))
                if answer is not None:
                    if answer.startswith(request_id):  # others answer requests that timed out
                        return answer[_ID_BYTES:]
                elif remaining <= 0:
                    raise CollectiveTimeoutError(
                        f"no answer from the controller within {timeout_s:g} s: is it stopped or overloaded? "
                        "Look into its log, or give a longer timeout_s"
                    )
                elif not self._alive():
                    raise WorkerLostError("the controller of this job is gone: stop, and start the job again")

    def _receive(self, timeout_s: float) -> bytes | None:
        """Return the next message, or None; one call into ZeroMQ instead of a poll and a receive."""
        spin_until = time.perf_counter() + min(self.spin_s, timeout_s)
        while time.perf_counter() < spin_until:
            with contextlib.suppress(zmq.Again):
                return self._socket.recv(zmq.NOBLOCK)
        timeout_ms = _milliseconds(timeout_s)
        if timeout_ms != self._receive_timeout_ms:
            self._socket.rcvtimeo = self._receive_timeout_ms = timeout_ms
        try:
            return self._socket.recv()
        except zmq.Again:
            return None

    def close(self) -> None:
        """See `ClientChannel.close`."""
        self._context.destroy(linger=0)


class ZmqServer:
    """The controller's end.

    Parameters
    ----------
    address : str
        To bind to.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 200  # ms, for answers to workers that are just leaving
        # A backstop against memory exhaustion; the decoder refuses what is over MAX_BYTES politely.
        self._socket.maxmsgsize = 16 * MAX_BYTES
        self._socket.bind(address)
        self._poller: zmq.Poller | None = None
        self._fds: list[int] = []

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        """See `ServerChannel.wait`."""
        if self._poller is None or list(fds) != self._fds:
            self._poller, self._fds = self._new_poller(fds), list(fds)
        events = dict(self._poller.poll(_milliseconds(timeout_s)))
        received = self._receive() if events.pop(self._socket, None) else []
        return received, set(events)

    def _new_poller(self, fds: Sequence[int]) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in fds:
            poller.register(fd, zmq.POLLIN)
        return poller

    def _receive(self) -> list[Received]:
        received: list[Received] = []
        while len(received) < _BATCH and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 1 and len(frames[0]) >= _ID_BYTES:
                received.append(Received(peer, frames[0][:_ID_BYTES], frames[0][_ID_BYTES:]))
            else:
                received.append(Received(peer, b"", b""))
        return received

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """See `ServerChannel.reply`."""
        self._socket.send_multipart([peer, request_id.ljust(_ID_BYTES, b"\0") + data])

    def close(self) -> None:
        """See `ServerChannel.close`."""
        self._socket.close()
        self._context.term()
