"""What a test sees of a running job from outside its workers' handles: its state and its center in shared memory.

The scripts of workers import it as well: the folder of the tests is on their path.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from platoon_base.centers.device_directory import DeviceDirectory
from platoon_base.centers.host import HostCenters
from platoon_base.job import JOB
from platoon_base.job.files import JobFiles, leftovers, remove, running, segment_prefix
from platoon_base.parameters import Parameters
from platoon_base.shm.job_state import CONTROLLER_LOCK, WORKER_LOCKS, JobState
from platoon_base.shm.segments import SHM_FOLDER, Segment
from platoon_base.system.environment import MAX_WORKERS

__all__ = [
    "PATIENCE_S",
    "await_file",
    "center_of",
    "clean_up",
    "controller_lives",
    "ending",
    "exchange_pids",
    "is_stopped",
    "living",
    "partitions_of",
    "position",
    "progress",
    "rest",
    "takes_part",
    "until",
    "waits_in",
]

PATIENCE_S = 60


def until(condition, patience_s=PATIENCE_S, *, step=lambda: time.sleep(1e-3)):
    """Make steps until a condition holds, and fail if it does not for so long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        step()


def clean_up():
    """Remove what a power cut leaves of jobs, as `platoon clean` does, which spares young ones for a while."""

    def nothing_is_left():
        for leftover in leftovers():
            remove(leftover)
        folders = Path(tempfile.gettempdir(), segment_prefix().strip("/-")).glob("*/job.json")
        return not any((*running(), *folders, *SHM_FOLDER.glob(f"{segment_prefix().strip('/')}*")))

    until(nothing_is_left)


def rest():
    """Wait ten minutes for a signal: one that comes just before a sleep begins is seen when that ends."""
    for _ in range(6000):
        time.sleep(0.1)


def await_file(path, process=None):
    """Wait for a file, and return its text; fail if the process that is to bring it about ends before."""

    def is_there():
        ended = process is not None and process.poll() is not None
        assert path.exists() or not ended, f"it ended before {path.name}"
        return path.exists()

    until(is_there)
    return path.read_text()


@contextlib.contextmanager
def _job_state():
    """Open the state of the job that the environment names, with the locks on its bytes, for one look.

    Whoever has them open counts as one of the job: the last one out tidies up. So nobody keeps them.
    """
    with Segment.attach(_files().job_state) as segment:
        yield JobState(segment.buffer, rows=MAX_WORKERS, create=False), segment


def _files():
    return JobFiles.read(os.environ[JOB])


def progress(rank):
    """Return what a worker has written of itself; see `platoon_base.shm.job_state.Progress`."""
    with _job_state() as (job_state, _):
        return job_state.progress(rank)


def position(rank):
    """Return where a worker would go on from the center; see `platoon_base.shm.job_state.Position`."""
    with _job_state() as (job_state, _):
        return job_state.position(rank)


def waits_in(name, *ranks):
    """Return whether all these workers are in the collective call of this name, such as ``"barrier all here"``."""
    with _job_state() as (job_state, _):
        return all(_waits_in(job_state, name, rank) for rank in ranks)


def _waits_in(job_state, name, rank):
    before = int(job_state.row(rank)["waits"])  # odd inside a wait
    seen = job_state.read_text(rank, "waiting_in")
    return seen == name and before % 2 == 1 and before == int(job_state.row(rank)["waits"])


def ending(rank):
    """Return how a worker's process ended, as the controller has written it; empty before."""
    with _job_state() as (job_state, _):
        return job_state.read_text(rank, "ending")


def takes_part(rank):
    """Return whether a worker is there: its process lives, and it has not said goodbye."""
    with _job_state() as (job_state, segment):
        return segment.locked(WORKER_LOCKS + rank) and not job_state.row(rank)["left"]


def living():
    """Return the number of workers that rules reckon with."""
    with _job_state() as (job_state, _):
        return job_state.num_live[0]


def controller_lives():
    with _job_state() as (_, segment):
        return segment.locked(CONTROLLER_LOCK)


@contextlib.contextmanager
def center_of(params, rule):
    """Open the job's center on the host, as a worker that never synchronizes with it."""
    center = HostCenters(_files().center).attach(Parameters(params).layout, rule, MAX_WORKERS)
    try:
        yield center
    finally:
        center.close()


@contextlib.contextmanager
def partitions_of(params):
    """Open the directory of the job's center on devices."""
    directory = DeviceDirectory.attach(_files().center, Parameters(params).layout)
    try:
        yield directory
    finally:
        directory.close()


def exchange_pids(worker):
    """Return the process ids of all workers, in the order of their ranks: a collective call."""
    return worker.gather(os.getpid(), name="pids")


def is_stopped(pid):
    """Return whether a process is stopped, as by SIGSTOP."""
    return "State:\tT" in Path(f"/proc/{pid}/status").read_text()
