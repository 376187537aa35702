"""Hosting a job: make its files and shared memory, start its workers, serve, remove everything."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from platoon_base.channels import ServerChannel
from platoon_base.checkpoints.files import About
from platoon_base.checkpoints.writer import CheckpointWriter, Saving
from platoon_base.controller.controller import Controller
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.controller.outcome import ControllerOptions, Result
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.saving import JobSaving, TurnLock
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import ONE_HOST, World
from platoon_base.job import backends
from platoon_base.job.files import JobFiles, Origin
from platoon_base.job.starting import placed, training_variables
from platoon_base.shm.job_state import CONTROLLER_LOCK, TURN_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.segments import Segment
from platoon_base.system.environment import MAX_WORKERS
from platoon_base.system.limits import raise_descriptors, require_descriptors
from platoon_base.system.process import default_sigchld
from platoon_base.worker_process.program import Program, Start
from platoon_base.worker_process.warden import Warden

log = logging.getLogger(__name__)

# File descriptors for ZeroMQ, shared memory and logs; and for each worker's connection and process.
_DESCRIPTORS, _DESCRIPTORS_EACH = 48, 4


@dataclass(frozen=True)
class JobOptions(ControllerOptions):
    seed: int = 0  # A resumed job has the seed of its checkpoint.
    # "host", or "device" if all workers compute on CUDA devices that reach each other.
    center: str = "host"
    saving: Saving | None = None
    resume: tuple[Path, About] | None = None  # The checkpoint to resume from.
    port: int = 0  # A TCP port that names the job for workers that are started by hand; 0 for none.
    # If users start the workers, the job ends when all have ended and no other is expected, or one has failed.
    external: bool = False
    origin: Origin | None = None
    hosts: OtherHosts | None = None
    deterministic: bool = False  # Workers take turns, see `platoon_base.shm.turns`.
    story: Story | None = None  # The event log, which may contain events of an earlier run.


_DEFAULT = JobOptions()


@contextlib.contextmanager
def host_job(size: int, options: JobOptions = _DEFAULT) -> Iterator[Job]:
    """Open a new job on this host; within the ``with`` block start its workers and serve it.

    After the block no process, shared memory or folder of the job is left. ``size`` is 0 for an
    unknown number of external workers. Raises ConfigurationError if the job is not possible.
    """
    _require_possible(size, options)
    pid = os.getpid()
    world = ONE_HOST if options.hosts is None else options.hosts.world
    file, about = options.resume if options.resume is not None else ("", None)
    with contextlib.ExitStack() as stack:
        files = JobFiles(
            size=size,
            center_memory=options.center,
            checkpoint=str(file),
            origin=options.origin or Origin(),
            world=world,
            takes_turns=options.deterministic,
            training=None if options.external else training_variables(os.environ),
        ).create()
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
            options,
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
            # A forked child owns none of these resources.
            if os.getpid() != pid:
                stack.pop_all()


def _require_possible(size: int, options: JobOptions) -> None:
    if not (0 if options.external else 1) <= size <= MAX_WORKERS:
        raise ConfigurationError(f"got {size} workers: a job has 1 to {MAX_WORKERS}")
    if not 0 <= options.seed < 2**63:
        raise ConfigurationError(f"got seed {options.seed}: a seed must be 0 to 2**63 - 1")
    require_descriptors_for(size)


def require_descriptors_for(workers: int) -> None:
    """Raise the limit of open files; ConfigurationError if it is too low for the workers."""
    raise_descriptors()
    require_descriptors(_DESCRIPTORS + _DESCRIPTORS_EACH * workers)


def _listen(files: JobFiles, options: JobOptions, stack: contextlib.ExitStack) -> tuple[JobFiles, ServerChannel]:
    """Open the controller's channels; return the job's files with the port, and the channels."""
    local = backends.listen_at(files.address)
    stack.callback(local.close)
    if options.port:
        stack.enter_context(_reserved(options.port))
        files = msgspec.structs.replace(files, port=options.port)
        files.write()
    return files, local if options.hosts is None else options.hosts.relayed(local)


def _reserved(port: int) -> socket.socket:
    """Reserve a port of this host; nobody listens there, so nothing can connect."""
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", port))
    except OSError as exc:
        sock.close()
        raise ConfigurationError(f"cannot reserve port {port} ({exc.strerror}): pass another one") from exc
    return sock


def warden_of(files: JobFiles) -> Warden:
    """Return the process that ends this host's workers, and cleans up, if this one is killed."""
    call = f"from {JobFiles.__module__} import JobFiles; JobFiles.read({files.folder!r}).remove_if_dead()"
    path = "import sys; sys.path[:1] == [''] and sys.path.pop(0)"
    return Warden(files.folder, [sys.executable, "-c", f"{path}; {call}"])


@contextlib.contextmanager
def open_job_state(files: JobFiles) -> Iterator[tuple[Segment, JobState]]:
    """Make the memory of a job's state, and hold the lock that shows this process is alive."""
    with Segment.create(files.job_state, JobState.size_bytes(MAX_WORKERS)) as segment:
        segment.try_lock(CONTROLLER_LOCK)
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=True)
        try:
            yield segment, job_state
        finally:
            job_state.detach()


_OF_ONE_START = ("saved", "stopped_by", "trained")  # They describe the run that reported them.


def _resumed(about: About, size: int, world: World, story: Story | None) -> Coordinator:
    coordinator = Coordinator(size, about.seed, world=world, story=story)
    coordinator.restore_earlier_job(
        positions={rank: about.position(rank, size) for rank in range(size)},
        kept=about.kept,
        reported={n: v for n, v in about.reported.items() if v is not None and n not in _OF_ONE_START},
        has_center=bool(about.parameters),
    )
    return coordinator


def _saving(
    files: JobFiles,
    options: JobOptions,
    segment: Segment,
    job_state: JobState,
    coordinator: Coordinator,
    stack: contextlib.ExitStack,
) -> JobSaving | None:
    if options.saving is None:
        return None
    about = None if options.resume is None else options.resume[1]
    resumed = about is not None and bool(about.parameters)
    checkpointer = CheckpointWriter(options.saving, lambda layout: backends.watch_center(files, layout), resumed)
    stack.callback(checkpointer.close)
    coordinator.saves_center()
    seconds_before = 0.0 if about is None else about.seconds
    turns = None
    if options.deterministic and options.center == "host":
        turns = TurnLock(lambda: segment.try_lock(TURN_LOCK), lambda: segment.unlock(TURN_LOCK))
    return JobSaving(checkpointer, job_state, coordinator, options.hosts, seconds_before, turns)


class Job:
    """An open job; a process joins it if ``PLATOON_JOB`` names ``files.folder``."""

    def __init__(self, files: JobFiles, children: WorkerProcesses, controller: Controller) -> None:
        self.files = files
        self._children = children
        self._controller = controller

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log_file: Path | None) -> None:
        """Start one worker; `placed` completes its environment."""
        self._children.start(*self.placed(Start(rank, command, environment, log_file)))

    def take_over(self, start: Start, pid: int) -> None:
        """Watch a worker that is a child of this process; ``start`` must come from `placed`."""
        self._children.take_over(start, pid)

    def start_forked(
        self, program: Program, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]
    ) -> None:
        """Fork all workers from one process that has imported ``preload``; fall back to `start`."""
        self._children.start_forked(program, args, preload, [self.placed(start) for start in starts])

    def placed(self, start: Start) -> Start:
        return placed(self.files, start)

    @property
    def remaining(self) -> set[int] | None:
        """Ranks present or expected; None before the first is known. Other threads may read it."""
        return self._controller.remaining

    def serve(self, signals: StopSignals | None = None) -> Result:
        """Serve until all workers have ended; ``signals`` may be open already."""
        return self._controller.serve(signals)
