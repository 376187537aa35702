"""Start a script as N workers of a new job, and run the job to its end."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from platoon_base.checkpoints.files import About, CheckpointFolder
from platoon_base.checkpoints.writer import Saving, Tally
from platoon_base.cli.data_server import data_server
from platoon_base.cli.run_files import story_written
from platoon_base.cli.worker_output import write_first_error
from platoon_base.controller.outcome import Result
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.story import Story
from platoon_base.devices.discovery import can_share_center, require_devices
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import ONE_HOST
from platoon_base.job.files import Origin
from platoon_base.job.hosting import JobOptions, host_job
from platoon_base.job.starting import free_address, worker_environment, worker_starts
from platoon_base.multihost.hosts import HostTable
from platoon_base.system.environment import DETERMINISTIC, NO_FORK_SERVER
from platoon_base.system.limits import require_room
from platoon_base.worker_process.forkserver import modules_to_preload
from platoon_base.worker_process.program import Program

log = logging.getLogger(__name__)

CENTERS = ("auto", "host", "device")


def require_runnable(program: Program, devices: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless the program and the devices, at least one, exist."""
    if not devices:
        raise ConfigurationError("got no workers: pass -n N for their number, or name devices with -D")
    program.require()
    if program.hidden:
        log.warning(
            "the script has the name of the package %s, so an import of the package finds the "
            "script: rename the script",
            program.hidden,
        )
    require_devices(list(devices))


def open_checkpoints(
    folder: Path, every_s: float | None, resume: bool, seed: int | None
) -> tuple[Saving, tuple[Path, About] | None]:
    """Open a folder of checkpoints; with ``resume`` read the newest complete one, if any."""
    if every_s is not None and not 0 < every_s < math.inf:
        raise ConfigurationError(f"got --checkpoint-every {every_s:g}: it must be a positive number of seconds")
    require_room(folder, "checkpoints")
    kept = CheckpointFolder(folder)
    found = kept.newest() if resume else None
    if not resume and kept.numbers():
        raise ConfigurationError(
            f"{folder} has checkpoints: continue from them with --resume {folder}, or name another --log-dir"
        )
    if found is not None and seed not in (None, found[1].seed):
        raise ConfigurationError(
            f"got --seed {seed}, and {found[0]} has seed {found[1].seed}: another seed changes "
            "the order of the data; leave --seed out"
        )
    return Saving(kept, math.inf if every_s is None else every_s), found


def choose_center(wanted: str, devices: Sequence[str]) -> str:
    """Return ``"host"`` or ``"device"``; ``"auto"`` chooses the device where possible."""
    if wanted not in CENTERS:
        raise ConfigurationError(f"got center {wanted!r}: it must be one of {', '.join(CENTERS)}")
    if wanted == "host":
        return "host"
    reason = can_share_center(devices)
    if reason and wanted == "device":
        raise ConfigurationError(
            f"the center cannot be in GPU memory: {reason}; leave --center out, which falls back to shared memory"
        )
    return "host" if reason else "device"


def launch(
    program: Program,
    args: Sequence[str],
    devices: Sequence[str],
    log_folder: Path,
    options: JobOptions,
    signals: StopSignals | None = None,
    server: Sequence[str] = (),
    hosts: HostTable | None = None,
) -> Result:
    """Run ``program`` on a worker for each device to the end; call `require_runnable` before."""
    world = ONE_HOST if hosts is None else hosts.world
    address = free_address(world.addresses[0]) if world.several else ""
    starts = worker_starts(program, args, devices, log_folder, world, address)
    size = world.size if world.several else len(devices)
    origin = Origin([*program.argv, *args], list(devices), str(log_folder.absolute()))
    story = options.story or Story()
    options = replace(options, origin=origin, hosts=hosts, story=story)
    preload = preloaded(program, devices)

    def run(options: JobOptions) -> Result:
        environment = worker_environment("cpu", len(devices), os.environ)
        with (
            story_written(log_folder, story),
            host_job(size, options) as job,
            data_server(server, job.files.folder, environment, log_folder),
        ):
            if hosts is not None:
                hosts.welcome(job.files, log_folder.absolute(), address)
            if preload:
                job.start_forked(program, args, preload, starts)
            else:
                for start in starts:
                    job.start(*start)
            return job.serve(signals)

    max_restarts = options.max_restarts
    restarts, seconds, tally = 0, 0.0, Tally()
    while True:
        with contextlib.nullcontext() if hosts is None else hosts.notifying_of_failure():
            result = run(replace(options, max_restarts=max_restarts - restarts))
        if hosts is not None:
            if result.again and hosts.lost:
                log.error("cannot restart the workers: %s", hosts.lost)
                result = result._replace(again=False, restarts=result.restarts - 1)
            of_all = result.with_failures_allowed() if options.fail_fast == "never" else result
            hosts.over(of_all.status, result.stopped_by, result.again)
        restarts += result.restarts
        seconds += result.seconds
        if result.checkpoints is not None:
            tally = result.checkpoints.after(tally)
            result = result._replace(checkpoints=tally)
        if not result.again:
            write_first_error(log_folder, result.failed)
            return result._replace(restarts=restarts, seconds=seconds)
        log.warning("restarting all workers, restart %d of %d", restarts, max_restarts)
        newest = options.saving.folder.newest() if options.saving is not None else None
        options = replace(options, resume=newest)


def preloaded(program: Program, devices: Sequence[str]) -> list[str]:
    """Return the modules that the fork server imports once; [] to start each worker alone."""
    # A process that uses a GPU must not fork.
    if set(devices) != {"cpu"} or os.environ.get(NO_FORK_SERVER):
        return []
    if os.environ.get(DETERMINISTIC):  # Frameworks are seeded at import.
        return []
    return modules_to_preload(program)
