"""Attaching to a running job: its files, its shared memory and its controller."""

from __future__ import annotations

import contextlib
import os

from platoon_base.channels import ClientChannel
from platoon_base.channels.client import ControlClient
from platoon_base.checkpoints.files import read_checkpoint
from platoon_base.collectives.groups import Membership
from platoon_base.job import backends
from platoon_base.job.files import JobFiles
from platoon_base.shm.job_state import CONTROLLER_LOCK, TURN_LOCK, USER_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.liveness import JobLiveness
from platoon_base.shm.segments import Segment, abandoned
from platoon_base.shm.turns import Turns
from platoon_base.system.environment import MAX_WORKERS, TRACE
from platoon_base.system.limits import available_cores, require_descriptors
from platoon_base.system.orphan import end_without, found_out, is_watched
from platoon_base.worker.connection import AdvisoryLock, BackEnds, Connection, Identity, send_hello
from platoon_base.worker.handle import Worker
from platoon_base.worker.progress_row import SpanRecorder

_SPIN_S = 150e-6
_DESCRIPTORS = 48  # ZeroMQ, shared memory and the log need at most this many.


def attach(
    folder: str, rank: int | None = None, device: str = "cpu", timeout_s: float | None = None
) -> tuple[Worker, JobFiles]:
    """Attach to a job by its folder; without ``rank`` join late with a new one."""
    files = JobFiles.read(folder)
    if rank is None:
        files.require_joinable()
    require_descriptors(_DESCRIPTORS)
    with contextlib.ExitStack() as undo:
        segment = Segment.attach(files.job_state)
        undo.callback(_close_segment, files, segment)
        channel = backends.connect_to(files, lambda: _controller_lives(segment))
        undo.callback(channel.close)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)
        undo.callback(job_state.detach)
        identity = send_hello(channel, rank, device, timeout_s)
        job_state.start_row(identity.rank, identity.resume_at)
        segment.try_lock(WORKER_LOCKS + identity.rank)
        if identity.local_size < available_cores():
            channel.spin_s = _SPIN_S
        traces = os.environ.get(TRACE)
        spans = SpanRecorder(traces, identity.rank) if traces else None
        worker = Worker(_connection(files, segment, job_state, channel, identity, spans))
        if not is_watched() and files.origin.pid != os.getpid():
            end_without(lambda: _watched_for(segment))
        undo.pop_all()
    return worker, files


def _turns(files: JobFiles, segment: Segment, job_state: JobState, identity: Identity) -> Turns | None:
    """Return the turns of a worker, or None where workers take none."""
    # A single worker takes turns too: the controller saves its center between them.
    if not files.takes_turns:
        return None
    lock, unlock = (lambda: segment.try_lock(TURN_LOCK)), (lambda: segment.unlock(TURN_LOCK))
    return Turns(job_state, identity.rank, identity.size, lock, unlock)


def _controller_lives(segment: Segment) -> bool:
    alive = segment.locked(CONTROLLER_LOCK)
    if not (alive or segment.closed):
        found_out()
    return alive


def _watched_for(segment: Segment) -> bool | None:
    """Return whether the controller lives; None once this worker has left the job."""
    alive = segment.locked(CONTROLLER_LOCK)
    return None if segment.closed else alive


def _close_segment(files: JobFiles, segment: Segment) -> None:
    """Close a job's state; without a controller the last process removes the job's files."""
    orphaned = not segment.locked(CONTROLLER_LOCK)
    segment.close()
    if orphaned and abandoned(files.job_state):
        files.remove()


def _lock(files: JobFiles, segment: Segment, channel: ClientChannel, identity: Identity) -> AdvisoryLock:
    """Return the lock of the job: the kernel's on one host, the controller's on several."""
    if not files.world.several:
        return AdvisoryLock(lambda: segment.try_lock(USER_LOCK), lambda: segment.unlock(USER_LOCK))
    client = ControlClient(channel, identity.rank)
    return AdvisoryLock(client.try_lock, client.free_lock)


def _connection(
    files: JobFiles,
    segment: Segment,
    job_state: JobState,
    channel: ClientChannel,
    identity: Identity,
    spans: SpanRecorder | None,
) -> Connection:
    liveness = JobLiveness(
        job_state,
        lambda other: segment.locked(WORKER_LOCKS + other),
        lambda others: (segment.fileno(), [WORKER_LOCKS + other for other in others]),
        identity.rank,
    )

    def on_close() -> None:
        if spans is not None:
            spans.write()
        job_state.detach()
        _close_segment(files, segment)

    back_ends = BackEnds(
        centers=lambda parameters, rule: backends.center_for(files, identity.size, liveness, parameters, rule),
        collectives=lambda client: backends.JobCollectives(
            Membership(client, identity.rank, files.size, liveness, files.world),
            files.collective,
            lambda: job_state.collectives(identity.rank),
        ),
        checkpoint=lambda: read_checkpoint(files.checkpoint),
    )
    connection = Connection(
        identity,
        channel,
        job_state,
        _lock(files, segment, channel, identity),
        back_ends,
        controller_alive=lambda: _controller_lives(segment),
        on_close=on_close,
        turns=_turns(files, segment, job_state, identity),
    )
    if spans is not None:
        connection.progress.clock.record = spans.record
    return connection
