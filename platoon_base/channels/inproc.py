"""Control messages by plain calls: the in-process channel of single-worker jobs."""

from __future__ import annotations

import collections
import itertools
import queue
import threading

from platoon_base.channels import Received
from platoon_base.channels.server import ControlServer, UserHandler
from platoon_base.coordination import messages as msg
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import decode_request, encode
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.shm.job_state import JobState
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S

_NEED_NO_ANSWER = (msg.StopVote, msg.Report, msg.Keep, msg.Withdraw, msg.Leave)


class InprocHub:
    """A controller's decisions in this process: requests are handled in the calling thread."""

    def __init__(self, coordinator: Coordinator, job_state: JobState, handler: UserHandler | None = None) -> None:
        self.closed = False
        self._coordinator = coordinator
        self._todo: collections.deque[Received | None] = collections.deque()
        self._lock = threading.RLock()
        self._handling = False  # True while the thread with the lock handles a request.
        self._peers = itertools.count()
        self._answers: dict[bytes, queue.SimpleQueue[tuple[bytes, bytes]]] = {}
        self._server = ControlServer(coordinator, job_state, self._deliver, handler)

    def connect(self) -> InprocClient:
        peer = next(self._peers).to_bytes(8, "little")
        self._answers[peer] = queue.SimpleQueue()
        return InprocClient(self, peer, self._answers[peer])

    def receive(self, received: Received) -> None:
        """Handle one request, or leave it to a thread that is handling one already."""
        self._todo.append(received)
        self._work()

    def tick(self) -> None:
        self._todo.append(None)
        self._work()

    @property
    def interrupted(self) -> bool:
        """Whether the caller is a signal handler that interrupted a request; it gets no answer."""
        mine = self._lock.acquire(blocking=False)
        try:
            return mine and self._handling
        finally:
            if mine:
                self._lock.release()

    def _work(self) -> None:
        """Handle all requests, unless another thread or an interrupted call is handling them."""
        while self._todo and self._lock.acquire(blocking=False):
            try:
                if self._handling:
                    return
                self._handling = True
                try:
                    while self._todo:
                        self._handle(self._todo.popleft())
                finally:
                    self._handling = False
            finally:
                self._lock.release()

    def _handle(self, received: Received | None) -> None:
        now = awake()
        if received is None:
            self._server.carry_out(self._coordinator.tick(now))
        else:
            self._server.receive(received, now)

    def close(self) -> None:
        self.closed = True

    def _deliver(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        if peer in self._answers:
            self._answers[peer].put((request_id, data))


class InprocClient:
    """A worker's connection to an `InprocHub`."""

    def __init__(self, hub: InprocHub, peer: bytes, answers: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
        self._hub = hub
        self._peer = peer
        self._answers = answers
        self._ids = itertools.count(1)
        # Answers by request: another thread may take an answer from the queue.
        self._awaited: dict[bytes, bytes] = {}
        self._closed = False

    def request(self, data: bytes, timeout_s: float) -> bytes:
        if self._closed:
            raise WorkerLostError("this connection is closed; a worker cannot be used after close()")
        request_id = next(self._ids).to_bytes(8, "little")
        if self._hub.interrupted:
            return self._leave_for_later(request_id, data)
        deadline = awake() + timeout_s
        self._awaited[request_id] = b""
        try:
            self._hub.receive(Received(self._peer, request_id, data))
            while not self._awaited[request_id]:
                if not self._take_answer(deadline):
                    self._hub.tick()
                    self._check(deadline, timeout_s)
            return self._awaited[request_id]
        finally:
            del self._awaited[request_id]

    def _take_answer(self, deadline: float) -> bool:
        """Take an answer to any request from the queue; False if none arrived soon."""
        try:
            answer_id, answer = self._answers.get(timeout=max(0.0, min(POLL_S, deadline - awake())))
        except queue.Empty:
            return False
        if answer_id in self._awaited:  # Other answers belong to requests that timed out.
            self._awaited[answer_id] = answer
        return True

    def _check(self, deadline: float, timeout_s: float) -> None:
        if self._closed:
            raise WorkerLostError("this connection was closed during the request")
        if self._hub.closed:
            raise WorkerLostError("the controller of this job has ended: stop, and start the job again")
        if awake() > deadline:
            raise CollectiveTimeoutError(
                f"no answer from the controller within {timeout_s:g} s; pass a longer timeout_s"
            )

    def _leave_for_later(self, request_id: bytes, data: bytes) -> bytes:
        """Queue a request that needs no answer until the signal handler has returned."""
        request = decode_request(data)
        if not isinstance(request, _NEED_NO_ANSWER):
            raise ConfigurationError(
                f"got a {type(request).__name__} request from a signal handler that has "
                "interrupted another request, which cannot continue meanwhile: in the handler "
                "call request_stop, report or keep, or set a flag, and make this call in the "
                "training loop"
            )
        self._hub.receive(Received(self._peer, request_id, data))
        return encode(msg.Done())

    def close(self) -> None:
        self._closed = True
