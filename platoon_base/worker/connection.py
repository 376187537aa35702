"""The connection of a worker: its identity, its channel, the shared state, locks and the leader."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.base import CenterFactory
from platoon_base.channels import ClientChannel
from platoon_base.channels.client import ControlClient
from platoon_base.checkpoints.files import Checkpoint
from platoon_base.collectives.base import Collective
from platoon_base.collectives.groups import CollectiveFactory, Collectives
from platoon_base.collectives.local import LocalFactory
from platoon_base.coordination import messages as msg
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule
from platoon_base.sharding import START, Position
from platoon_base.shm.job_state import JobState
from platoon_base.shm.turns import NoTurns, Turns
from platoon_base.system.process import awake, pid_namespace
from platoon_base.timeouts import DEFAULT_TIMEOUT_S, LIVENESS_S, SHORT_POLL_S, timeout
from platoon_base.worker.progress_row import ProgressRow
from platoon_base.worker_process import apart

log = logging.getLogger(__name__)


class StopSignal:
    """Whether the job is to stop: its stop flag is set, or its controller is lost."""

    def __init__(self, job_state: JobState, rank: int, controller_alive: Callable[[], bool]) -> None:
        self._job_state = job_state
        self._rank = rank
        self._controller_alive = controller_alive
        self._next_poll_at = 0.0
        self._closed = False

    def is_set(self) -> bool:
        if self._job_state.stopping:
            return True
        now = time.monotonic()
        if now < self._next_poll_at:
            return False
        self._next_poll_at = now + LIVENESS_S
        # The order matters: `close` runs before the memory is unmapped.
        if self._controller_alive() or self._closed:
            return False
        log.warning("rank %d: the controller of this job has ended; stopping", self._rank)
        self._job_state.stop("the controller has ended")
        return True

    @property
    def reason(self) -> str:
        return self._job_state.stop_reason

    def close(self) -> None:
        """Stop checking the controller; `is_set` keeps its last value."""
        self._closed = True


_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 5e-3


class AdvisoryLock:
    """A reentrant lock; ``try_acquire`` returns whether this worker holds the lock now."""

    def __init__(self, try_acquire: Callable[[], bool], release: Callable[[], None]) -> None:
        self._try_acquire = try_acquire
        self._release = release
        self._times = 0

    def acquire(self, timeout_s: float) -> None:
        # Count before the wait, so that a signal handler cannot release this call's lock.
        self._times += 1
        try:
            self._wait(timeout_s)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Undo one call of `acquire`; undoing the last one releases the lock."""
        self._times = max(self._times - 1, 0)
        if not self._times:
            self._release()

    def _wait(self, timeout_s: float) -> None:
        pause, deadline = _SHORTEST_PAUSE_S, awake() + timeout_s
        while not self._try_acquire():
            if awake() >= deadline:
                raise CollectiveTimeoutError(
                    f"another worker held the lock for {timeout_s:g} s; call unlock() in a finally clause"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class Identity(NamedTuple):
    """Which worker of the job this process is, as the controller answers a join; see `Worker`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    seed: int
    device: str
    late: bool = False
    resume_at: Position = START
    kept: Mapping[str, bytes] = MappingProxyType({})


class BackEnds(NamedTuple):
    """Factories of parts that are created at first use; a single worker has none of them."""

    centers: Callable[[Parameters, Rule], CenterFactory] | None = None
    collectives: Callable[[ControlClient], CollectiveFactory] | None = None
    checkpoint: Callable[[], Checkpoint] | None = None


_NONE = BackEnds()
_SAME_MODE = (
    "All workers must average gradients, or all must share parameters with a rule: pass the same "
    'mode="sync" or mode="async" on every worker, and in other loops make the same calls in the '
    "same order"
)


class Connection:
    """A process's connection to its job: control client, job state, process groups and lock."""

    def __init__(
        self,
        identity: Identity,
        channel: ClientChannel,
        job_state: JobState,
        lock: AdvisoryLock,
        back_ends: BackEnds = _NONE,
        *,
        controller_alive: Callable[[], bool] = lambda: True,
        on_close: Callable[[], None] = lambda: None,
        turns: Turns | None = None,
    ) -> None:
        self.identity = identity
        self.job_state = job_state
        self.lock = lock
        self.centers, collectives, self.checkpoint = back_ends
        self.progress = ProgressRow(job_state, identity.rank)
        self.stop_signal = StopSignal(job_state, identity.rank, controller_alive)
        self.turns: Turns | NoTurns = NoTurns() if turns is None else turns
        # Waits for updates of the center that are queued on a device. Barriers call it first: after
        # a barrier each worker reads the others' updates.
        self.finish_queued: Callable[[], None] = lambda: None
        self.closed, self.combined = False, 0
        self.trainings = 0
        self._client = ControlClient(
            channel,
            identity.rank,
            self.progress.row,
            self.progress.clock,
            self.turns.meet if turns else None,
            lambda: self.finish_queued(),
        )
        self._arrays = Collectives(collectives(self._client) if collectives else LocalFactory(), identity.late)
        self._controller_alive = controller_alive
        self._on_close = on_close
        self._pid = os.getpid()
        if self.centers is not None:
            apart.watch(self._cooperation)

    def _cooperation(self) -> apart.Cooperation:
        row = self.progress.row
        synced = bool(row["syncs"] or row["copies"])
        combined = self.combined > 0 or self._client.combined or synced
        return apart.Cooperation(combined, synced, self.progress.steps, waits=bool(row["waits"] % 2))

    @property
    def client(self) -> ControlClient:
        self.require_open()
        return self._client

    def group(self, array: Any, timeout_s: float) -> Collective:
        """Return the process group for this kind of array; form it at the first call."""
        self.require_open()
        self.require_controller()
        if isinstance(array, np.ndarray):  # Other arrays follow their device's order.
            self.finish_queued()
        self.turns.meet()
        self.combined += 1
        return self._arrays.of(array, timeout_s)

    @property
    def compresses_gradients(self) -> bool:
        return self._arrays.compresses

    def nccl_group(self, ordinal: int, timeout_s: float) -> Any:
        """Return the NCCL group for memory given by address, or None; see `Collectives.nccl`."""
        self.require_open()
        self.require_controller()
        self.turns.meet()
        self.combined += 1
        return self._arrays.nccl(ordinal, timeout_s)

    def require_same_mode(self, mode: str) -> None:
        """Raise if another worker averages gradients and this one uses a rule, or the reverse."""
        self.trainings += 1  # A refused training is counted too, on all workers.
        # Workers that joined late or were restarted may have missed a training.
        if self.identity.size > 1 and not self.identity.late:
            name = f"the way in which training {self.trainings} keeps the models together"
            self.client.ask(msg.Same(name=name, fingerprint=mode, remedy=_SAME_MODE), msg.Done, DEFAULT_TIMEOUT_S)

    @property
    def num_live(self) -> tuple[int, int]:
        """The live workers on this host and on all hosts; all workers if turns are taken."""
        size = self.identity.size
        return (size, size) if self.turns.taken else self.job_state.num_live

    def is_single_worker(self) -> bool:
        """Return whether it was launched alone and no other worker has shared parameters."""
        return self.identity.size == 1 and not self.job_state.shared_by_several

    @property
    def open_here(self) -> bool:
        """Whether it is open and this process is the one that joined, not a forked child."""
        return not self.closed and os.getpid() == self._pid

    def require_open(self) -> None:
        """Raise if it is closed or this process is a forked child of the one that joined."""
        if self.closed:
            raise ConfigurationError("this worker has left the job: nothing can be done after close()")
        if os.getpid() != self._pid:
            raise ConfigurationError(
                "this is a forked child of the worker's process, and only the process that "
                "joined the job may make calls"
            )

    def require_controller(self) -> None:
        if self.stop_signal.is_set() and not self._controller_alive():
            self.require_open()  # Another thread may have closed it.
            raise WorkerLostError("the controller of this job has ended: stop, and start the job again")

    def close(self, finish: Callable[[], None], release: Callable[[], None], failed: bool = False) -> None:
        """Leave the job; a second call does nothing.

        ``finish`` runs first unless ``failed``; ``release`` unmaps the job's memory after the
        channels are closed. With ``failed`` no `Leave` is sent: the controller counts this worker
        as lost.
        """
        if self.closed:
            return
        self.closed = True
        self.stop_signal.close()
        if os.getpid() != self._pid:
            return  # The parent of a forked child owns them.
        try:
            if not failed:
                finish()
                self.progress.mark_left()
            self._arrays.close()
            separate = apart.unused(self._cooperation())
            for intent in separate:
                log.warning("%s", intent.text)
            self._client.close(say_goodbye=not failed, separate=bool(separate) and not apart.Intent.any_was_used)
        finally:
            release()
            self.progress.close()
            self._on_close()


class Leadership:
    """Whether this worker is the leader; see `Worker.is_leader`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._job_state, self._rank = connection.job_state, connection.identity.rank
        self._waited_for = -1

    def held(self) -> bool:
        """Return whether this worker leads; if the leader just left, wait for the reason."""
        leader = self._job_state.leader
        may_change = leader != self._rank and self._waited_for != leader and not self._connection.closed
        if may_change and self._job_state.row(leader)["left"]:
            self._await_end(leader)
        leads = self._job_state.leader == self._rank
        if leads and self._rank:
            self._connection.progress.row["led"] = 1  # The launcher reports the new leader.
        return leads

    def _await_end(self, leader: int) -> None:
        deadline = time.monotonic() + timeout("end")
        while not self._job_state.row(leader)["ending"] and time.monotonic() < deadline:
            time.sleep(SHORT_POLL_S)
        time.sleep(SHORT_POLL_S)  # The controller writes "ending" first.
        self._waited_for = leader


def send_hello(channel: ClientChannel, rank: int | None, device: str, timeout_s: float | None = None) -> Identity:
    """Introduce this process to the controller; return the worker's identity."""
    hello = msg.Hello(
        protocol=msg.PROTOCOL,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        host=socket.gethostname(),
        device=device,
        rank=rank,
    )
    client = ControlClient(channel, -1 if rank is None else rank)
    reply = client.ask(hello, msg.Welcome, timeout("connect") if timeout_s is None else timeout_s)
    return Identity(
        reply.rank,
        reply.size,
        reply.local_rank,
        reply.local_size,
        reply.seed,
        device,
        reply.late,
        reply.resume_at,
        reply.kept,
    )
