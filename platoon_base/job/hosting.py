"""Hosting a job: make its files and shared memory, start its workers, serve them, remove everything."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import msgspec

from platoon_base.channels.base import ServerChannel
from platoon_base.channels.keys import new_keys
from platoon_base.channels.server import UserHandler
from platoon_base.checkpoints.files import About
from platoon_base.checkpoints.residuals import usable_key
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.controller.controller import Controller
from platoon_base.controller.options import ControllerOptions
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.controller.outcome import Reported, Result, Snapshot
from platoon_base.controller.processes import GRACE_S, WorkerProcesses
from platoon_base.controller.saving import JobSaving, TurnLock
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.budget import Budget
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.world import ONE_HOST, World
from platoon_base.job import backends
from platoon_base.job.files import JobFiles, Origin
from platoon_base.job.starting import placed, training_variables
from platoon_base.shm.job_state import CONTROLLER_LOCK, TURN_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.segments import Segment
from platoon_base.system.environment import MAX_WORKERS
from platoon_base.system.limits import raise_descriptors, require_descriptors
from platoon_base.system.signals import default_sigchld
from platoon_base.worker_process.program import Program, Start
from platoon_base.worker_process.warden import Warden

log = logging.getLogger(__name__)

__all__ = ["Job", "JobOptions", "host_job", "open_job_state", "require_descriptors_for", "warden_of"]

_DESCRIPTORS, _DESCRIPTORS_EACH = 48, 4  # for ZeroMQ, shared memory and logs; per worker a connection and a process


class JobOptions(NamedTuple):
    """How a job is hosted.

    Attributes
    ----------
    seed : int
        Common to all workers; that of the checkpoint counts where a job is resumed.
    center : {"host", "device"}
        Where the center is to live; ``"device"`` if all workers compute on CUDA devices that reach each other.
    handler : callable or None
        ``handler(req, rank, info)`` answers the requests that workers send with `Worker.send_req`.
    observer : callable or None
        Called with a `Snapshot` about every ``observe_every_s`` seconds.
    observe_every_s : float
    on_report : callable or None
        Called with a `Reported` whenever a worker reports values, while that worker waits.
    budget : Budget or None
        What the job may spend before it is stopped.
    max_restarts : int
        How often, in all, workers that fail are started again.
    saving : Saving or None
        Where and how often checkpoints are written.
    resume : (Path, About) or None
        The checkpoint to go on from.
    listen : str
        Where the controller listens instead of at a Unix socket, such as ``"tcp://127.0.0.1:*"``. Then it talks only
        to those who have the job's CURVE keys, which are in its folder.
    fail_fast : {"never", "early", "always"}
        Which failure of one worker ends the whole job, unless the worker is started again: none; an exception before
        its first step, which nobody would want the others to go on after; any.
    grace_s : float
        How long workers have to end after a signal to this process before they are made to.
    external : bool
        Whether the user starts the workers, each with its own command, at any time. The job ends when all that came
        have ended, and all that were to come have come or one of them has failed.
    origin : Origin or None
        Told to those who ask for this user's jobs.
    hosts : OtherHosts or None
        The other hosts of the job.
    deterministic : bool
        Whether workers take turns at the center, and checkpoints are of one moment; see `platoon_base.shm.turns`.
    story : Story or None
        Where what happens is recorded; it may have begun with an earlier run.
    """

    seed: int = 0
    center: str = "host"
    handler: UserHandler | None = None
    observer: Callable[[Snapshot], None] | None = None
    observe_every_s: float = 0.5
    on_report: Callable[[Reported], None] | None = None
    budget: Budget | None = None
    max_restarts: int = 0
    saving: Saving | None = None
    resume: tuple[Path, About] | None = None
    listen: str = ""
    fail_fast: str = "never"
    grace_s: float = GRACE_S
    external: bool = False
    origin: Origin | None = None
    hosts: OtherHosts | None = None
    deterministic: bool = False
    story: Story | None = None


_DEFAULT = JobOptions()


@contextlib.contextmanager
def host_job(size: int, options: JobOptions = _DEFAULT) -> Iterator[Job]:
    """Open a new job on this host; within the ``with`` block start its workers and serve it.

    After the block nothing of the job is left: no process, no shared memory, no folder.

    Parameters
    ----------
    size : int
        Number of workers; 0 if they are started by hand, and nobody knows how many will come.
    options : JobOptions

    Raises
    ------
    ConfigurationError
        If there are too many workers, the seed is out of range, or the system does not let so many files be open.
    """
    _require_possible(size, options)
    pid = os.getpid()
    world = ONE_HOST if options.hosts is None else options.hosts.world
    file, about = options.resume if options.resume is not None else ("", None)
    with contextlib.ExitStack() as stack:
        files = JobFiles.create(
            size,
            options.center,
            str(file),
            options.origin,
            world,
            takes_turns=options.deterministic,
            training=None if options.external else training_variables(os.environ),
        )
        stack.callback(files.lock().close)
        stack.callback(files.remove)
        segment, job_state = stack.enter_context(open_job_state(files))
        coordinator = (
            _resumed(about, size, world, options.story)
            if about is not None
            else Coordinator(size, options.seed, options.external, world, options.story)
        )
        for rank, participant in coordinator.roster.items():
            job_state.start_row(rank, participant.resume_at)
        files, server = _listen(files, options, stack)
        saving = _saving(files, options, segment, job_state, coordinator, stack)
        stack.enter_context(default_sigchld())
        warden = warden_of(files)
        stack.callback(warden.close)
        children = WorkerProcesses(warden)
        stack.callback(children.kill)
        if options.hosts is not None:
            stack.callback(options.hosts.end)
        controller = Controller(
            server,
            job_state,
            coordinator,
            children,
            lambda rank: segment.locked(WORKER_LOCKS + rank),
            _controller_options(options),
            saving,
            options.hosts,
        )
        if options.hosts is not None:
            options.hosts.begin(
                job_state,
                files,
                lambda rank: segment.locked(WORKER_LOCKS + rank),
                coordinator.roster,
                children,
                controller,
            )
        try:
            yield Job(files, children, controller)
        finally:
            if os.getpid() != pid:  # a forked child exits: all of it is its parent's
                stack.pop_all()


def _require_possible(size: int, options: JobOptions) -> None:
    """Raise `ConfigurationError` unless there can be a job of this size; see `host_job`."""
    if not (0 if options.external else 1) <= size <= MAX_WORKERS:
        raise ConfigurationError(f"got {size} workers: a job has 1 to {MAX_WORKERS}")
    if not 0 <= options.seed < 2**63:
        raise ConfigurationError(f"got seed {options.seed}: random generators take seeds from 0 to 2**63 - 1")
    require_descriptors_for(size)


def require_descriptors_for(workers: int) -> None:
    """Let this process open as many files as it may; raises `ConfigurationError` if they are too few for workers."""
    raise_descriptors()
    require_descriptors(_DESCRIPTORS + _DESCRIPTORS_EACH * workers)


def _listen(files: JobFiles, options: JobOptions, stack: contextlib.ExitStack) -> tuple[JobFiles, ServerChannel]:
    """Open the controller's end of the channels; returns the job's files with its address, and the channels."""
    server_keys, keys = new_keys() if options.listen else (None, None)
    local = backends.listen_at(options.listen or files.address, server_keys)
    stack.callback(local.close)
    if options.listen:
        files = msgspec.structs.replace(files, endpoint=local.address, keys=keys)
        files.write()
    return files, local if options.hosts is None else options.hosts.relayed(local)


def warden_of(files: JobFiles) -> Warden:
    """Return the process that ends the workers of this host, and removes what they leave, if this one is killed."""
    call = f"from {JobFiles.__module__} import JobFiles; JobFiles.read({files.folder!r}).remove_if_dead()"
    path = "import sys; sys.path[:1] == [''] and sys.path.pop(0)"
    return Warden(files.folder, [sys.executable, "-c", f"{path}; {call}"])


@contextlib.contextmanager
def open_job_state(files: JobFiles) -> Iterator[tuple[Segment, JobState]]:
    """Make the memory of a job's state, and hold the lock by which its workers know that this process lives."""
    with Segment.create(files.job_state, JobState.size_bytes(MAX_WORKERS)) as segment:
        segment.try_lock(CONTROLLER_LOCK)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=True)
        try:
            yield segment, job_state
        finally:
            job_state.detach()


def _resumed(about: About, size: int, world: World, story: Story | None) -> Coordinator:
    """Make the coordinator of a job that goes on from a checkpoint."""
    coordinator = Coordinator(size, about.seed, world=world, story=story)
    coordinator.restore_earlier_job(
        positions={rank: about.position(rank, size) for rank in range(size)},
        kept=about.kept,
        reported={name: value for name, value in about.reported.items() if value is not None},
        has_center=bool(about.parameters),
    )
    return coordinator


def _controller_options(options: JobOptions) -> ControllerOptions:
    return ControllerOptions(**{field.name: getattr(options, field.name) for field in fields(ControllerOptions)})


def _saving(
    files: JobFiles,
    options: JobOptions,
    segment: Segment,
    job_state: JobState,
    coordinator: Coordinator,
    stack: contextlib.ExitStack,
) -> JobSaving | None:
    """Make what writes the checkpoints of a job, if there are to be any."""
    if options.saving is None:
        return None
    about = None if options.resume is None else options.resume[1]
    resumed = about is not None and bool(about.parameters)
    checkpointer = CheckpointWriter(options.saving, lambda layout: backends.watch_center(files, layout), resumed)
    stack.callback(checkpointer.close)
    coordinator.saves_center()
    seconds_before = 0.0 if about is None else about.seconds
    if about is not None:
        _warn_of_lost_residuals(about, ONE_HOST if options.hosts is None else options.hosts.world)
    turns = None
    if options.deterministic and options.center == "host":
        turns = TurnLock(lambda: segment.try_lock(TURN_LOCK), lambda: segment.unlock(TURN_LOCK))
    return JobSaving(checkpointer, job_state, coordinator, options.hosts, seconds_before, turns)


def _warn_of_lost_residuals(about: About, world: World) -> None:
    """Warn if the hosts of a resumed job cannot go on with the residuals of its compressed rounds."""
    _, problem = usable_key(about.residuals, world)
    if about.residuals is not None and problem:
        log.warning(
            "the residuals of the checkpoint, what --hosts-compression %s had left out of the hosts' contributions to "
            "rounds, are not used: %s. That part of the training is lost, and each host starts from zero",
            about.residuals.compression,
            problem,
        )


class Job:
    """An open job.

    Attributes
    ----------
    files : JobFiles
        ``files.folder`` is what ``PLATOON_JOB`` must name for a process to join.
    """

    def __init__(self, files: JobFiles, children: WorkerProcesses, controller: Controller) -> None:
        self.files = files
        self._children = children
        self._controller = controller

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log_file: Path | None) -> None:
        """Start the worker of one rank; the variables by which it finds the job are added to its environment."""
        self._children.start(*self.placed(Start(rank, command, environment, log_file)))

    def take_over(self, start: Start, pid: int) -> None:
        """Watch a worker that runs as a child of this process already, at the head of a process group of its own.

        Parameters
        ----------
        start : Start
            As `placed` returned it, so that the worker has found the job; by its command it would be started again.
        pid : int
        """
        self._children.take_over(start, pid)

    def start_forked(
        self, program: Program, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]
    ) -> None:
        """Start all workers, forked from one process that has imported the modules in ``preload`` once for all.

        If that fails, they start by their commands.
        """
        self._children.start_forked(program, args, preload, [self.placed(start) for start in starts])

    def placed(self, start: Start) -> Start:
        """Add the variables by which a worker finds the job to its environment."""
        return placed(self.files, start)

    @property
    def remaining(self) -> set[int] | None:
        """Ranks that take part or are expected, None before the first is known of; other threads may ask for it."""
        return self._controller.remaining

    def serve(self, signals: StopSignals | None = None) -> Result:
        """Serve until all workers have ended; ``signals`` to use one that is open already."""
        return self._controller.serve(signals)
