"""Control messages over ZeroMQ: ROUTER at the controller, DEALER at each worker.

A request is one frame, since each frame costs a microsecond or two on either side: 8 bytes that name the request, and
the encoded message. Its answer begins with the same 8 bytes, or with zeros if the message was not framed so.

Within a host the socket lies in a folder that only its user can enter. Over TCP every connection is encrypted, and
admitted only with the job's keys, in both directions.
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

from platoon_base.channels.base import Received
from platoon_base.channels.keys import Keys, ServerKeys, ZapHandler, admit_only, use_keys
from platoon_base.coordination.messages import MAX_BYTES
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, ProtocolError, WorkerLostError
from platoon_base.system.awake import awake

__all__ = ["ZmqClient", "ZmqServer"]

_POLL_INTERVAL_S = (
    0.25  # how often a waiting client looks whether the controller still lives, and lets other threads in
)
_HANDOVER_TIMEOUT_S = 1e-3
_CLOSE_S = 5.0  # that requests of other threads have to end in
_BATCH = 256  # requests taken from the socket in one go, so that children and timers get their turn
_ID_BYTES = 8
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


def _milliseconds(seconds: float) -> int:
    """Round up, so that a poll does not end just before a deadline, and never give the -1 that means for ever."""
    return max(0, math.ceil(seconds * 1e3))


def _require_keys(address: str, keys: Keys | ServerKeys | None) -> None:
    if keys is None and not address.startswith("ipc://"):
        raise ConfigurationError(
            f"got address {address!r} without keys: whoever reaches it could read and send this job's messages. "
            "Give the keys made by platoon_base.channels.keys.new_keys(), or an ipc:// address within this host"
        )


class ZmqClient:
    """The worker's end.

    Parameters
    ----------
    address : str
        Such as ``ipc:///path`` or ``tcp://host:port``.
    controller_alive : callable
        Tells whether waiting still makes sense.
    keys : Keys, optional
        The job's; needed unless the address is an ``ipc://`` one.

    Attributes
    ----------
    spin_s : float
        How long a request looks for its answer before it sleeps. Waking up takes longer than the answer to a plain
        request, so it pays where a core is free for it; where none is, it keeps the controller from answering.

    Raises
    ------
    ConfigurationError
        If the address cannot be connected to, or needs keys.
    """

    def __init__(self, address: str, controller_alive: Callable[[], bool], keys: Keys | None = None) -> None:
        _require_keys(address, keys)
        self._address = address
        self._alive = controller_alive
        # Taken for one send and one look at most, so that threads take turns; a signal handler is let in at once.
        self._lock = threading.RLock()
        self._inside = 0  # requests of the thread that has the lock: its own, and those of its signal handlers
        self._queue: set[bytes] = set()  # requests that wait for the lock
        self._awaited: dict[bytes, bytes] = {}  # answers by request; another thread may receive them
        self._closing = False
        self._ids = itertools.count(1)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        # Without a connection to send on, as after a refusal, or with a full one, send() would wait for ever.
        self._socket.sndtimeo = _milliseconds(_POLL_INTERVAL_S)
        self._refusals: zmq.Socket[bytes] | None = None
        self._receive_timeout_ms = -1
        self.spin_s = 0.0
        try:
            if keys is not None:
                use_keys(self._socket, keys)
                self._refusals = self._socket.get_monitor_socket(_REFUSED)
            self._socket.connect(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(f"cannot connect to {address!r} ({exc}): give tcp://host:port") from exc

    def request(self, data: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its answer; a `ProtocolError` if the controller refuses this worker's keys."""
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
                    time.sleep(_HANDOVER_TIMEOUT_S)  # or this thread would have the lock again before another wakes up
        finally:
            self._queue.discard(request_id)
            del self._awaited[request_id]

    def _take_turn(self, request_id: bytes, unsent: bytes, deadline: float, timeout_s: float) -> bytes:
        """Send what is unsent and look for an answer, for a while; returns what is still unsent."""
        self._inside += 1
        try:
            if self._closing:
                raise WorkerLostError("this connection is closed; a worker cannot be used after close()")
            remaining = deadline - awake()
            if unsent and not self._send(unsent):
                self._check(remaining, timeout_s)
                return unsent
            if not self._awaited[request_id]:
                answer = self._receive(min(remaining, _POLL_INTERVAL_S))
                if answer is None:
                    self._check(remaining, timeout_s)
                elif answer[:_ID_BYTES] in self._awaited:  # others answer requests that timed out
                    self._awaited[answer[:_ID_BYTES]] = answer
            return b""
        finally:
            self._inside -= 1
            self._destroy_if_closing()

    def _destroy_if_closing(self) -> None:
        """Close the socket, unless this thread is within a call of it, which a signal handler has interrupted."""
        if self._closing and not self._inside:
            self._context.destroy(linger=0)

    def _send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame)
        except zmq.Again:
            return False
        return True

    def _check(self, remaining_s: float, timeout_s: float) -> None:
        """Raise if there is no use in waiting any longer."""
        if self._closing:
            raise WorkerLostError("this connection was closed during the request")
        if self._refusals is not None and self._refusals.poll(0):  # and it stays so: libzmq does not try again
            raise ProtocolError(
                f"the controller at {self._address} refused this worker: it does not have the keys of that job. Start "
                "it with `platoon launch`, or take address and keys from the same running job"
            )
        if remaining_s <= 0:
            other_job = "" if self._refusals is None else ", or are these the keys of another job"
            raise CollectiveTimeoutError(
                f"no answer from the controller within {timeout_s:g} s: is it stopped or overloaded{other_job}? "
                "Look into its log, or give a longer timeout_s"
            )
        if not self._alive():
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
        """Close the connection; requests that still wait end with an error."""
        self._closing = True
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._destroy_if_closing()
            finally:
                self._lock.release()


class ZmqServer:
    """The controller's end.

    Parameters
    ----------
    address : str
        To bind to, such as ``ipc:///path``, ``tcp://host:port`` or, for any free port, ``tcp://host:*``.
    keys : ServerKeys, optional
        The job's; needed unless the address is an ``ipc://`` one. Only a client with the other keys that
        `new_keys` made with them gets an answer.

    Attributes
    ----------
    address : str
        The address that it listens at, with the port.
    zap_handler : ZapHandler or None
        Tells libzmq whom to admit; None without keys.

    Raises
    ------
    ConfigurationError
        If the address cannot be bound to, or needs keys.
    """

    def __init__(self, address: str, keys: ServerKeys | None = None) -> None:
        _require_keys(address, keys)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 200  # ms, for answers to workers that are just leaving
        # A backstop against memory exhaustion; the decoder refuses messages over MAX_BYTES politely.
        self._socket.maxmsgsize = 16 * MAX_BYTES
        self.zap_handler: ZapHandler | None = None
        self._poller: zmq.Poller | None = None
        self._fds: list[int] = []
        try:
            if keys is not None:
                self.zap_handler = admit_only(self._socket, self._context, keys)
            self._socket.bind(cast(str, os.fsencode(address)))
        except zmq.ZMQError as exc:
            self.close()
            raise ConfigurationError(f"cannot listen at {address!r} ({exc}): give another address or port") from exc
        self.address = os.fsdecode(cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT))).rstrip("\0")

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        """Sleep until requests arrive or the time is over; with keys it may return earlier, with nothing.

        It also checks the clients that connect, so it must be called again and again.
        """
        if self._poller is None or list(fds) != self._fds:
            self._poller, self._fds = self._new_poller(fds), list(fds)
        events = dict(self._poller.poll(_milliseconds(timeout_s)))
        if self.zap_handler is not None and events.pop(self.zap_handler.socket, None):
            self.zap_handler.answer()
        received = self._receive() if events.pop(self._socket, None) else []
        return received, set(events)

    def _new_poller(self, fds: Sequence[int]) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if self.zap_handler is not None:
            poller.register(self.zap_handler.socket, zmq.POLLIN)
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
        """Send an answer; to a peer that is gone it is dropped."""
        self._socket.send_multipart([peer, request_id.ljust(_ID_BYTES, b"\0") + data])

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()
        if self.zap_handler is not None:
            self.zap_handler.close()
        self._context.term()
