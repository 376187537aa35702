"""Joining a job: the one that the environment names, or a single-worker job; the place in it."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING

from platoon_base.errors import ConfigurationError
from platoon_base.hosts import find_copies
from platoon_base.job import backends
from platoon_base.shm.job_state import JobState
from platoon_base.system.environment import DEVICE, JOB, RANK
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import POLL_S, timeout
from platoon_base.worker.connection import AdvisoryLock, Connection, send_hello
from platoon_base.worker.handle import Worker

if TYPE_CHECKING:
    from platoon_base.job.files import JobFiles

_current: Worker | None = None
_current_pid = 0
_files: weakref.WeakKeyDictionary[Worker, JobFiles] = weakref.WeakKeyDictionary()


def connect() -> Worker:
    """Join the job that the environment names, once per process; return the open handle.

    Further calls return the same handle. Without ``PLATOON_JOB`` in the environment, as under plain
    ``python``, the process is a single-worker job: nothing is shared, and no call waits.

    Returns
    -------
    Worker
        It leaves the job at the end of the process, or when it is closed.

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
        _warn_of_copies()
        worker = single_worker(device=device)
    else:
        worker = join(folder, rank=None if rank is None else int(rank), device=device)
    return _keep(worker)


def _warn_of_copies() -> None:
    """Warn in the first of several processes that an engine has started outside of a job."""
    copies = find_copies(os.environ)
    if copies is not None and copies.rank == 0:
        warn_once(
            f"{copies.processes} processes were started by {copies.origin}, and each of them "
            "trains alone, on all of the data, and writes the same files. To train one model "
            f"start the script with `platoon launch -n {copies.processes}`, once on each host "
            "(docs/hosts.md). Ignore this if they are meant as separate runs"
        )


def connect_at_port(port: int, timeout_s: float, device: str = "cpu") -> Worker:
    """Join this user's job whose controller listens at a TCP port of this host.

    ``timeout_s`` bounds the wait for the controller's welcome: it serves later than it listens.
    Raises ConfigurationError if there is no such job, or this process has joined another one.
    """
    if connected() is not None:
        raise ConfigurationError("this process has joined a job already: a process is one worker of one job")
    files = _find_at_port(port, time.monotonic() + min(timeout_s, timeout("appear")))
    return _keep(join(files.folder, device=device, timeout_s=timeout_s))


def _find_at_port(port: int, deadline: float) -> JobFiles:
    """Find the job at a port; wait, as the controller may be starting."""
    from platoon_base.job.files import JobFiles

    while True:
        try:
            return JobFiles.at_port(port)
        except ConfigurationError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _keep(worker: Worker) -> Worker:
    """Make this the handle of `connected`, closed at the end of the process."""
    global _current, _current_pid
    _current, _current_pid = worker, os.getpid()
    atexit.register(worker.close)
    return worker


def connected() -> Worker | None:
    """Return the handle of `connect` in this process if it is still open; join nothing."""
    open_here = _current is not None and not _current.closed and _current_pid == os.getpid()
    return _current if open_here else None


def single_worker(seed: int = 0, device: str = "cpu") -> Worker:
    job_state = JobState(bytearray(JobState.size_bytes(1)), rows=1, create=True)
    channel = backends.connect_here(job_state, seed)
    identity = send_hello(channel, 0, device)
    nobody_to_keep_out = AdvisoryLock(lambda: True, lambda: None)
    return Worker(Connection(identity, channel, job_state, nobody_to_keep_out))


def join(folder: str, rank: int | None = None, device: str = "cpu", timeout_s: float | None = None) -> Worker:
    """Join a job by its folder; without ``rank`` join late with a new one."""
    from platoon_base.job.attaching import attach

    worker, files = attach(folder, rank, device, timeout_s)
    _files[worker] = files
    return worker


def files_of(worker: Worker) -> JobFiles | None:
    """Return the files of the job that a worker has joined; None in a single-worker job."""
    return _files.get(worker)


def rank() -> int:
    """Return this worker's rank in its job, from 0, over all hosts: ``connect().global_rank``."""
    return connect().global_rank


def world_size() -> int:
    """Return the number of launched workers on all hosts; 1 under plain ``python``."""
    return connect().global_size


def is_main() -> bool:
    """Return whether this worker saves and prints for all: ``connect().is_leader``.

    It is rank 0, or the lowest remaining rank if rank 0 fails: call it each time.

    Examples
    --------
    >>> if is_main():                                                               # doctest: +SKIP
    ...     model.save("model.keras")
    """
    return connect().is_leader
