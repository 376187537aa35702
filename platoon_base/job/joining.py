"""Joining a job: the one that the environment names, or a job of one."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
import weakref

from platoon_base.channels.base import ClientChannel
from platoon_base.channels.client import ControlClient
from platoon_base.checkpoints.files import read_checkpoint
from platoon_base.collectives.groups import Membership
from platoon_base.coordination import messages as msg
from platoon_base.errors import ConfigurationError
from platoon_base.job import backends
from platoon_base.job.files import JobFiles
from platoon_base.shm.job_state import CONTROLLER_LOCK, USER_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.liveness import JobLiveness
from platoon_base.shm.segments import Segment, abandoned
from platoon_base.system.environment import DEVICE, JOB, MAX_WORKERS, RANK
from platoon_base.system.limits import require_descriptors
from platoon_base.system.process import pid_namespace
from platoon_base.worker.advisory_lock import AdvisoryLock
from platoon_base.worker.connection import Connection, Identity
from platoon_base.worker.handle import Worker

__all__ = ["connect", "connect_at_port", "connected", "files_of", "join", "solo"]

_HELLO_TIMEOUT_S = 60.0
_SPIN_S = 150e-6
_APPEARS_S, _LOOK_S = 10.0, 0.1
_DESCRIPTORS = 48  # for ZeroMQ, shared memory and the log
_current: Worker | None = None
_current_pid = 0
_files: weakref.WeakKeyDictionary[Worker, JobFiles] = weakref.WeakKeyDictionary()


def connect() -> Worker:
    """Join the job that the environment names, once per process; called again it returns the same open handle.

    Without ``PLATOON_JOB`` in the environment, that is under plain ``python``, the process is a job of one: nothing
    is shared and nothing fails.

    Returns
    -------
    Worker
        It leaves at the end of the process, if it was not closed before.

    Raises
    ------
    ConfigurationError
        If the job is gone, or this rank has joined already.
    """
    worker = connected()
    if worker is not None:
        return worker
    folder = os.environ.get(JOB)
    rank = os.environ.get(RANK)
    device = os.environ.get(DEVICE, "cpu")
    if folder is None:
        worker = solo(device=device)
    else:
        worker = join(folder, rank=None if rank is None else int(rank), device=device)
    return _keep(worker)


def connect_at_port(port: int, timeout_s: float, device: str = "cpu") -> Worker:
    """Join the job of this user whose controller listens at a TCP port of this host, as `connect` joins one.

    Parameters
    ----------
    port : int
    timeout_s : float
        Bound on the wait for the controller's welcome: it serves later than it listens.
    device : str
        What this worker computes on.

    Raises
    ------
    ConfigurationError
        If there is no such job, or this process has joined another.
    """
    if connected() is not None:
        raise ConfigurationError("this process has joined a job already: a process is one worker of one job")
    files = _find_at_port(port, time.monotonic() + min(timeout_s, _APPEARS_S))
    return _keep(join(files.folder, device=device, timeout_s=timeout_s))


def _find_at_port(port: int, deadline: float) -> JobFiles:
    """Find the job at a port; the controller may have been started at the same time."""
    while True:
        try:
            return JobFiles.at_port(port)
        except ConfigurationError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_S)


def _keep(worker: Worker) -> Worker:
    """Make this the handle that `connected` gives, closed at the end of the process."""
    global _current, _current_pid
    _current, _current_pid = worker, os.getpid()
    atexit.register(worker.close)
    return worker


def connected() -> Worker | None:
    """Return the handle that `connect` gave in this process, if it is still open; join nothing."""
    open_here = _current is not None and not _current.closed and _current_pid == os.getpid()
    return _current if open_here else None


def solo(seed: int = 0, device: str = "cpu") -> Worker:
    """Make the worker of a job of one."""
    job_state = JobState(bytearray(JobState.size_bytes(1)), rows=1, create=True)
    channel = backends.connect_here(job_state, seed)
    identity = _say_hello(channel, 0, device)
    nobody_to_keep_out = AdvisoryLock(lambda: True, lambda: None)
    return Worker(Connection(identity, channel, job_state, nobody_to_keep_out))


def join(folder: str, rank: int | None = None, device: str = "cpu", timeout_s: float = _HELLO_TIMEOUT_S) -> Worker:
    """Join a job by its folder.

    Parameters
    ----------
    folder : str
    rank : int, optional
        The rank that the launcher gave; None to join late, with a new rank.
    device : str
        What this worker computes on.
    timeout_s : float
        Bound on the wait for the controller's welcome.
    """
    files = JobFiles.read(folder)
    require_descriptors(_DESCRIPTORS)
    with contextlib.ExitStack() as undo:
        segment = Segment.attach(files.job_state)
        undo.callback(_close_segment, files, segment)
        channel = backends.connect_to(files, lambda: segment.locked(CONTROLLER_LOCK))
        undo.callback(channel.close)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)
        undo.callback(job_state.let_go)
        identity = _say_hello(channel, rank, device, timeout_s)
        job_state.start_row(identity.rank, identity.resume_at)
        segment.try_lock(WORKER_LOCKS + identity.rank)
        if identity.local_size < len(os.sched_getaffinity(0)):
            channel.spin_s = _SPIN_S
        worker = Worker(_connection(files, segment, job_state, channel, identity))
        undo.pop_all()
    _files[worker] = files
    return worker


def files_of(worker: Worker) -> JobFiles | None:
    """Return the files of the job that a worker has joined; None in a job of one, which has none."""
    return _files.get(worker)


def _close_segment(files: JobFiles, segment: Segment) -> None:
    """Close the segment of a job's state; without a controller the last process to do so removes the job's files."""
    orphaned = not segment.locked(CONTROLLER_LOCK)
    segment.close()
    if orphaned and abandoned(files.job_state):
        files.remove()


def _connection(
    files: JobFiles, segment: Segment, job_state: JobState, channel: ClientChannel, identity: Identity
) -> Connection:
    """Make the connection of a worker that the controller has welcomed."""
    liveness = JobLiveness(job_state, lambda other: segment.locked(WORKER_LOCKS + other))

    def on_close() -> None:
        job_state.let_go()
        _close_segment(files, segment)

    return Connection(
        identity,
        channel,
        job_state,
        AdvisoryLock(lambda: segment.try_lock(USER_LOCK), lambda: segment.unlock(USER_LOCK)),
        centers=lambda parameters, rule: backends.center_for(files, identity.size, liveness, parameters, rule),
        controller_alive=lambda: segment.locked(CONTROLLER_LOCK),
        on_close=on_close,
        collectives=lambda client: backends.JobCollectives(
            Membership(client, identity.rank, files.size, liveness),
            files.collective,
            liveness,
            lambda: job_state.collectives(identity.rank),
        ),
        checkpoint=lambda: read_checkpoint(files.checkpoint),
    )


def _say_hello(channel: ClientChannel, rank: int | None, device: str, timeout_s: float = _HELLO_TIMEOUT_S) -> Identity:
    """Introduce this process to the controller, which answers with the worker's identity."""
    hello = msg.Hello(
        protocol=msg.PROTOCOL,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        host=socket.gethostname(),
        device=device,
        rank=rank,
    )
    reply = ControlClient(channel, -1 if rank is None else rank).ask(hello, msg.Welcome, timeout_s)
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
