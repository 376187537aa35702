"""Jobs as a whole: joining the one that the environment names, and hosting a new one.

The only file that chooses back ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from platoon_base.centers import device_directory
from platoon_base.centers.base import CenterFactory
from platoon_base.centers.directory_mirror import WatchedDirectory
from platoon_base.centers.host import HostCenters
from platoon_base.channels.base import ClientChannel
from platoon_base.channels.client import Session
from platoon_base.channels.inproc import InprocHub
from platoon_base.channels.keys import new_keys
from platoon_base.channels.server import UserHandler
from platoon_base.channels.zmq import ZmqClient, ZmqServer
from platoon_base.checkpoints.files import About, read_checkpoint
from platoon_base.checkpoints.writer import Checkpointer, Readable, Saving
from platoon_base.collectives.base import Collective
from platoon_base.collectives.groups import CollectiveFactory, Membership
from platoon_base.collectives.host import HostCollective
from platoon_base.collectives.staged import StagedCollective
from platoon_base.controller.controller import Controller, Result, Snapshot
from platoon_base.controller.forkserver import Start
from platoon_base.controller.limits import require_descriptors
from platoon_base.controller.processes import GRACE_S, Children
from platoon_base.controller.program import Program
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.controller.watch import default_sigchld, pid_namespace
from platoon_base.coordination import messages as msg
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.job.files import JobFiles
from platoon_base.layout import Layout
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule
from platoon_base.shm.job_state import CONTROLLER_LOCK, USER_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.liveness import JobLiveness, Liveness
from platoon_base.shm.segments import Segment, abandoned
from platoon_base.system.environment import DEVICE, JOB, MAX_WORKERS, RANK
from platoon_base.worker.handle import Lock, Place, Worker

__all__ = ["Job", "connect", "connected", "host_job", "join", "solo"]

log = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 60.0
_SPIN_S = 150e-6
_DESCRIPTORS, _DESCRIPTORS_EACH = 48, 4  # for ZeroMQ, shared memory and logs; per worker a connection and a process
_current: Worker | None = None
_current_pid = 0


def connect() -> Worker:
    """Join the job that the environment names, once per process; called again it returns the same open handle.

    Without ``PLATOON_JOB`` in the environment, that is under plain ``python``, the process is a job of one: nothing
    is shared and nothing fails.

    Returns
    -------
    Worker
        Left at the end of the process, if not closed before.

    Raises
    ------
    ConfigurationError
        If the job is gone, or this rank has joined already.
    """
    global _current, _current_pid
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
    channel = InprocHub(Coordinator(1, seed), job_state).connect()
    place = _say_hello(channel, 0, device)
    return Worker(place, channel, job_state, None, Lock(lambda: True, lambda: None))  # nobody to keep out


def join(folder: str, rank: int | None = None, device: str = "cpu") -> Worker:
    """Join a job by its folder.

    Parameters
    ----------
    folder : str
    rank : int, optional
        The rank that the launcher gave; None to join late, with a new rank.
    device : str
        What this worker computes on.
    """
    files = JobFiles.read(folder)
    require_descriptors(_DESCRIPTORS)
    with contextlib.ExitStack() as undo:
        segment = Segment.attach(files.job_state)
        undo.callback(_let_go, files, segment)
        channel = ZmqClient(files.address, lambda: segment.locked(CONTROLLER_LOCK), files.keys)
        undo.callback(channel.close)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)
        undo.callback(job_state.let_go)
        worker = _enter(files, segment, job_state, channel, rank, device)
        undo.pop_all()
    return worker


def _let_go(files: JobFiles, segment: Segment) -> None:
    """Let go of a job's state; without a controller the last one out tidies up."""
    orphaned = not segment.locked(CONTROLLER_LOCK)
    segment.close()
    if orphaned and abandoned(files.job_state):
        files.remove()


def _enter(
    files: JobFiles, segment: Segment, job_state: JobState, channel: ZmqClient, rank: int | None, device: str
) -> Worker:
    """Say hello on a channel that is open, and take the place given."""
    place = _say_hello(channel, rank, device)
    job_state.start_row(place.rank, place.resume_at)
    segment.try_lock(WORKER_LOCKS + place.rank)
    liveness = JobLiveness(job_state, lambda other: segment.locked(WORKER_LOCKS + other))
    if place.local_size < len(os.sched_getaffinity(0)):
        channel.spin_s = _SPIN_S

    def on_close() -> None:
        job_state.let_go()
        _let_go(files, segment)

    return Worker(
        place,
        channel,
        job_state,
        lambda parameters, rule: _choose_center(files, place.size, liveness, parameters, rule),
        Lock(lambda: segment.try_lock(USER_LOCK), lambda: segment.unlock(USER_LOCK)),
        controller_alive=lambda: segment.locked(CONTROLLER_LOCK),
        on_close=on_close,
        collectives=lambda session: _Groups(
            Membership(session, place.rank, files.size, liveness),
            files.collective,
            liveness,
            lambda: job_state.collectives(place.rank),
        ),
        checkpoint=lambda: read_checkpoint(files.checkpoint),
    )


def _watch_center(files: JobFiles, layout: Layout) -> Readable:
    """Open the center for the controller; one on devices by its mirror."""
    if files.place == "device":
        segment = Segment.attach(files.center, populate=False)
        directory = device_directory.Directory.of(segment, layout)
        if directory is not None:
            return WatchedDirectory(directory, layout)
        segment.close()
    return HostCenters(files.center).watch(layout)


def _choose_center(
    files: JobFiles, workers: int, liveness: Liveness, parameters: Parameters, rule: Rule
) -> CenterFactory:
    """Put the center on the devices if the launcher found that they reach each other and the parameters are there."""
    context = parameters.context if files.place == "device" else None
    if context is not None and context.kind == b"cuda":
        device = importlib.import_module("platoon_base.centers.device")
        if device.DeviceCenters.takes(parameters.layout, rule):
            found: CenterFactory = device.DeviceCenters(files.center, workers, context, liveness.gone)
            return found
    return HostCenters(files.center, workers)


class _Groups(CollectiveFactory):
    """Forms the groups of one job on this host."""

    def __init__(self, membership: Membership, name: str, liveness: Liveness, counter: Callable[[], Any]) -> None:
        self._membership = membership
        self._name = name
        self._liveness = liveness
        self._counter = counter

    def host(self, timeout_s: float) -> Collective:
        """See `CollectiveFactory.host`."""

        def create(ranks: tuple[int, ...], index: int) -> Collective:
            return HostCollective.create(self._name, ranks, index, self._liveness)

        def attach(ranks: tuple[int, ...], index: int) -> Collective:
            return HostCollective.attach(self._name, ranks, index, self._liveness)

        return self._membership.form("host collective", create, attach, timeout_s)

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        """See `CollectiveFactory.device`: NCCL if every rank has a CUDA device of its own, or else by the host."""
        clique, why = b"", f"{context.kind.decode()} has no NCCL"
        if context.kind == b"cuda":
            nccl = importlib.import_module("platoon_base.collectives.nccl")
            try:
                clique, why = nccl.new_clique_id(context), ""
            except BackendUnavailableError as exc:
                why = str(exc)[:500]
        identity = context.unique_id if context.kind == b"cuda" else ""
        note = msgspec.msgpack.encode([identity, clique, why])
        notes = self._membership.meet("form device collective", note, timeout_s)
        told = {rank: msgspec.msgpack.decode(note, type=tuple[str, bytes, str]) for rank, note in notes.items()}
        reasons = [f"rank {rank}: {reason}" for rank, (_, _, reason) in told.items() if reason]
        if len({identity for identity, _, _ in told.values()}) < len(told):
            reasons.append("some ranks share one device")
        if reasons:
            log.info("all-reduces of this job's devices pass through the host (%s)", "; ".join(reasons))
            return StagedCollective(host())
        ranks = tuple(told)
        index = ranks.index(self._membership.rank)
        group: Collective = nccl.NcclCollective(
            context, told[ranks[0]][1], ranks, index, self._liveness, self._counter()
        )
        return group


def _say_hello(channel: ClientChannel, rank: int | None, device: str) -> Place:
    hello = msg.Hello(
        protocol=msg.PROTOCOL,
        pid=os.getpid(),
        pid_namespace=pid_namespace(),
        host=socket.gethostname(),
        device=device,
        rank=rank,
    )
    reply = Session(channel, -1 if rank is None else rank).ask(hello, msg.Welcome, _HELLO_TIMEOUT_S)
    return Place(
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


@contextlib.contextmanager
def host_job(
    size: int,
    *,
    seed: int = 0,
    center: str = "host",
    handler: UserHandler | None = None,
    observer: Callable[[Snapshot], None] | None = None,
    observe_every_s: float = 0.5,
    max_restarts: int = 0,
    saving: Saving | None = None,
    resume: tuple[Path, About] | None = None,
    listen: str = "",
    grace_s: float = GRACE_S,
) -> Iterator[Job]:
    """Open a new job on this host; within the ``with`` block start its workers and serve it.

    ``center`` tells where the center is to live: ``"host"``, or ``"device"`` if all workers compute on CUDA devices
    that reach each other. On leaving the block nothing of the job is left: no process, no shared memory, no folder.
    ``max_restarts`` workers that fail are started again. With ``saving`` it writes checkpoints, and with ``resume`` it
    goes on from one, with that one's seed. With ``listen``, such as ``"tcp://127.0.0.1:*"``, the controller listens
    there instead of at a Unix socket, and talks to none but those who have the job's CURVE keys, which are in its
    folder. After a signal workers have ``grace_s`` seconds to end before they are made to.
    """
    if not 1 <= size <= MAX_WORKERS:
        raise ConfigurationError(f"got {size} workers: a job has 1 to {MAX_WORKERS}")
    if not 0 <= seed < 2**63:
        raise ConfigurationError(f"got seed {seed}: random generators take seeds from 0 to 2**63 - 1")
    require_descriptors(_DESCRIPTORS + _DESCRIPTORS_EACH * size)
    with contextlib.ExitStack() as stack:
        file, about = resume if resume is not None else ("", None)
        files = JobFiles.create(size, center, str(file))
        stack.callback(files.lock().close)
        stack.callback(files.remove)
        segment = stack.enter_context(Segment.create(files.job_state, JobState.size_bytes(MAX_WORKERS)))
        segment.try_lock(CONTROLLER_LOCK)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=True)
        stack.callback(job_state.let_go)
        coordinator = Coordinator(size, seed) if about is None else _resumed(about, size)
        for rank, member in coordinator.members.items():
            job_state.start_row(rank, member.resume_at)
        server_keys, keys = new_keys() if listen else (None, None)
        server = ZmqServer(listen or files.address, server_keys)
        stack.callback(server.close)
        if listen:
            files = msgspec.structs.replace(files, endpoint=server.address, keys=keys)
            files.write()
        checkpointer = None
        if saving is not None:
            resumed = about is not None and bool(about.parameters)
            checkpointer = Checkpointer(saving, lambda layout: _watch_center(files, layout), resumed)
            stack.callback(checkpointer.close)
        stack.enter_context(default_sigchld())
        children = Children()
        stack.callback(children.kill)
        controller = Controller(
            server,
            job_state,
            coordinator,
            children,
            lambda rank: segment.locked(WORKER_LOCKS + rank),
            handler=handler,
            observer=observer,
            observe_every_s=observe_every_s,
            max_restarts=max_restarts,
            checkpointer=checkpointer,
            seconds_before=0.0 if about is None else about.seconds,
            grace_s=grace_s,
        )
        yield Job(files, children, controller)


def _resumed(about: About, size: int) -> Coordinator:
    coordinator = Coordinator(size, about.seed)
    coordinator.take_up(
        positions={rank: about.position(rank, size) for rank in range(size)},
        kept=about.kept,
        reported={name: value for name, value in about.reported.items() if value is not None},
        has_center=bool(about.parameters),
    )
    return coordinator


class Job:
    """An open job.

    Attributes
    ----------
    files : JobFiles
        ``files.folder`` is what ``PLATOON_JOB`` must name for a process to join.
    """

    def __init__(self, files: JobFiles, children: Children, controller: Controller) -> None:
        self.files = files
        self._children = children
        self._controller = controller

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log_file: Path | None) -> None:
        """Start the worker of one rank; the variables by which it finds the job are added to its environment."""
        self._children.start(*self._placed(Start(rank, command, environment, log_file)))

    def start_forked(
        self, program: Program, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]
    ) -> None:
        """Start all workers, forked from one process that has imported the modules in ``preload`` once for all.

        If that fails, they start by their commands.
        """
        self._children.start_forked(program, args, preload, [self._placed(start) for start in starts])

    def _placed(self, start: Start) -> Start:
        place = {JOB: self.files.folder, RANK: str(start.rank)}
        return start._replace(environment={**start.environment, **place})

    def serve(self, signals: StopSignals | None = None) -> Result:
        """Serve until all workers have ended; ``signals`` to use one that is open already."""
        return self._controller.serve(signals)
