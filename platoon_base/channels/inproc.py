"""Control messages without a wire: the in-process twin of the ZeroMQ channel, and the channel of a job of one."""

from __future__ import annotations

import itertools
import queue
import threading
import time

from platoon_base.channels.base import Received
from platoon_base.control_words import ControlWords
from platoon_base.coordinator import Coordinator
from platoon_base.dispatch import Dispatcher, UserHandler
from platoon_base.errors import CollectiveTimeoutError, WorkerLostError

__all__ = ["InprocClient", "InprocHub"]


class InprocHub:
    """A controller's decisions inside this process: each request is treated in the thread that makes it."""

    def __init__(self, coordinator: Coordinator, words: ControlWords, handler: UserHandler | None = None) -> None:
        self.closed = False
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._answers: dict[bytes, queue.SimpleQueue[tuple[bytes, bytes]]] = {}
        self._dispatcher = Dispatcher(coordinator, words, self._deliver, handler)

    def connect(self) -> InprocClient:
        """Open the channel of one more worker."""
        with self._lock:
            peer = len(self._answers).to_bytes(8, "little")
            self._answers[peer] = queue.SimpleQueue()
            return InprocClient(self, peer, self._answers[peer])

    def receive(self, received: Received) -> None:
        """Treat one request."""
        with self._lock:
            self._dispatcher.receive(received, time.monotonic())

    def tick(self) -> None:
        """Refuse the waits whose deadline has passed."""
        with self._lock:
            self._dispatcher.carry_out(self._coordinator.tick(time.monotonic()))

    def close(self) -> None:
        """End the job for those who still wait."""
        self.closed = True

    def _deliver(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        if peer in self._answers:
            self._answers[peer].put((request_id, data))


class InprocClient:
    """The worker's end."""

    def __init__(self, hub: InprocHub, peer: bytes, answers: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
        self._hub = hub
        self._peer = peer
        self._answers = answers
        self._ids = itertools.count(1)
        self._closed = False

    def request(self, data: bytes, timeout_s: float) -> bytes:
        """See `ClientChannel.request`."""
        if self._closed:
            raise WorkerLostError("this connection is closed; a worker cannot be used after close()")
        request_id = next(self._ids).to_bytes(8, "little")
        deadline = time.monotonic() + timeout_s
        self._hub.receive(Received(self._peer, request_id, data))
        while True:
            try:
                answer_id, answer = self._answers.get(timeout=max(0.0, min(0.05, deadline - time.monotonic())))
            except queue.Empty:
                self._hub.tick()
                if self._hub.closed:
                    raise WorkerLostError("the controller of this job is gone: stop, and start the job again") from None
                if time.monotonic() > deadline:
                    raise CollectiveTimeoutError(
                        f"no answer from the controller within {timeout_s:g} s; give a longer timeout_s"
                    ) from None
                continue
            if answer_id == request_id:  # others answer requests that timed out
                return answer

    def close(self) -> None:
        """See `ClientChannel.close`."""
        self._closed = True
