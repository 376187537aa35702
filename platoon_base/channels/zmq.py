"""Control messages over ZeroMQ: ROUTER at the controller, DEALER at each worker.

A request is one frame, since each frame costs a microsecond or two per side: 8 bytes of an id and
the encoded message. Its answer begins with the same id, or with zeros if the message was not
framed. The socket is in a folder that only its user can enter.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import zmq

from platoon_base.channels import Received
from platoon_base.coordination.messages import MAX_BYTES
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.system.process import awake
from platoon_base.timeouts import LIVENESS_S, timeout

_HANDOVER_TIMEOUT_S = 1e-3
# At most this many requests are taken in a row, so that child processes and timers are served too.
_BATCH = 256
_ID_BYTES = 8


def _milliseconds(seconds: float) -> int:
    """Round up: a poll must not end just before a deadline. Never return -1: no timeout."""
    return max(0, math.ceil(seconds * 1e3))


class ZmqClient:
    """The worker's end.

    ``controller_alive()`` says whether waiting still makes sense. A request polls for ``spin_s``
    before it sleeps: waking up takes longer than a plain answer, but without a free core spinning
    delays the controller. Raises `ConfigurationError` if the address is unusable.
    """

    def __init__(self, address: str, controller_alive: Callable[[], bool]) -> None:
        self._alive = controller_alive
        # Held for one send and one poll at most, so threads alternate; a signal handler enters
        # immediately.
        self._lock = threading.RLock()
        # Requests of the thread with the lock: its own, and those of its signal handlers.
        self._inside = 0
        self._queue: set[bytes] = set()  # Requests that wait for the lock.
        # Answers by request; another thread may receive them.
        self._awaited: dict[bytes, bytes] = {}
        self._closing = False
        self._ids = itertools.count(1)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        # Without a connection, or with a full one, send() would block forever.
        self._socket.sndtimeo = _milliseconds(LIVENESS_S)
        self._receive_timeout_ms = -1
        self.spin_s = 0.0
        try:
            self._socket.connect(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(f"cannot connect to {address!r} ({exc})") from exc

    def request(self, data: bytes, timeout_s: float) -> bytes:
        deadline = awake() + timeout_s
        request_id = next(self._ids).to_bytes(_ID_BYTES, "little")
        self._awaited[request_id] = b""
        unsent = request_id + data
        try:
            while True:
                self._queue.add(request_id)
                with self._lock:
                    self._queue.discard(request_id)
                    unsent = self._take_turn(request_id, unsent, deadline, timeout_s)
                answer = self._awaited[request_id]
                if answer:
                    return answer[_ID_BYTES:]
                if self._queue:
                    # Otherwise this thread would reacquire the lock before another wakes up.
                    time.sleep(_HANDOVER_TIMEOUT_S)
        finally:
            self._queue.discard(request_id)
            del self._awaited[request_id]

    def _take_turn(self, request_id: bytes, unsent: bytes, deadline: float, timeout_s: float) -> bytes:
        """Send unsent data and wait briefly for an answer; return what is still unsent."""
        self._inside += 1
        try:
            if self._closing:
                raise WorkerLostError("this connection is closed; a worker cannot be used after close()")
            remaining = deadline - awake()
            if unsent and not self._send(unsent):
                self._check(remaining, timeout_s)
                return unsent
            if not self._awaited[request_id]:
                answer = self._receive(min(remaining, LIVENESS_S))
                if answer is None:
                    self._check(remaining, timeout_s)
                # Other answers belong to requests that timed out.
                elif answer[:_ID_BYTES] in self._awaited:
                    self._awaited[answer[:_ID_BYTES]] = answer
            return b""
        finally:
            self._inside -= 1
            self._destroy_if_closing()

    def _destroy_if_closing(self) -> None:
        """Close the socket, unless a signal handler has interrupted this thread in a call of it."""
        if self._closing and not self._inside:
            self._context.destroy(linger=0)

    def _send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame)
        except zmq.Again:
            return False
        return True

    def _check(self, remaining_s: float, timeout_s: float) -> None:
        if self._closing:
            raise WorkerLostError("this connection was closed during the request")
        if remaining_s <= 0:
            raise CollectiveTimeoutError(
                f"no answer from the controller within {timeout_s:g} s: is it stopped or "
                "overloaded? Read its log, or pass a longer timeout_s"
            )
        if not self._alive():
            raise WorkerLostError("the controller of this job has ended: stop, and start the job again")

    def _receive(self, timeout_s: float) -> bytes | None:
        spin_until = time.perf_counter() + min(self.spin_s, timeout_s)
        while time.perf_counter() < spin_until:
            with contextlib.suppress(zmq.Again):
                return self._socket.recv(zmq.NOBLOCK)
        # A receive with a timeout is one call into ZeroMQ instead of a poll and a receive.
        timeout_ms = _milliseconds(timeout_s)
        if timeout_ms != self._receive_timeout_ms:
            self._socket.rcvtimeo = self._receive_timeout_ms = timeout_ms
        try:
            return self._socket.recv()
        except zmq.Again:
            return None

    def close(self) -> None:
        """Close the connection; waiting requests end with an error."""
        self._closing = True
        if self._lock.acquire(timeout=timeout("end")):
            try:
                self._destroy_if_closing()
            finally:
                self._lock.release()


class ZmqServer:
    """The controller's end, at ``ipc://PATH``; raises `ConfigurationError` if that is unusable."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 200  # Milliseconds for answers to workers that are leaving.
        # A limit against memory exhaustion; the decoder answers messages over MAX_BYTES with an
        # error.
        self._socket.maxmsgsize = 16 * MAX_BYTES
        self._poller: zmq.Poller | None = None
        self._fds: list[int] = []
        try:
            self._socket.bind(cast(str, os.fsencode(address)))
        # With a path as bytes, pyzmq raises TypeError while it words an error of the system.
        except (zmq.ZMQError, TypeError) as exc:
            why = zmq.strerror(zmq.zmq_errno())
            self.close()
            raise ConfigurationError(f"cannot listen at {address!r} ({why})") from exc

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
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
        self._socket.send_multipart([peer, request_id.ljust(_ID_BYTES, b"\0") + data])

    def close(self) -> None:
        self._socket.close()
        self._context.term()
