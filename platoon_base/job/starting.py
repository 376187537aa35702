"""How workers are started: commands, environments, logs, folders of compiled kernels."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from platoon_base import timeouts
from platoon_base.compat.theano_flags import worker_flags
from platoon_base.hosts import ONE_HOST, World
from platoon_base.job.files import JobFiles
from platoon_base.system.environment import (
    DEVICE,
    ERROR_FILE,
    EVERY_N_BATCHES,
    FRAMEWORK_RANK,
    JOB,
    LAUNCHER,
    LIMITED_THREADS,
    RANK,
    RULE,
    THREAD_VARIABLES,
    TIMEOUTS,
    WORKERS,
)
from platoon_base.system.job_paths import path_of
from platoon_base.system.limits import available_cores
from platoon_base.worker_process.failure import error_file
from platoon_base.worker_process.program import Program, Start, python_main

log = logging.getLogger(__name__)

_KERNEL_CACHE = "GPUARRAY_CACHE_PATH"
_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"


def log_file(folder: Path, rank: int) -> Path:
    return path_of(folder, "log", rank=rank)


def worker_environment(device: str, workers: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one worker; variables that the user has set stay."""
    environment = dict(base)
    environment[DEVICE] = device
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Scripts may number labels by the order of a set: it must be the same on all workers.
    environment["PYTHONHASHSEED"] = environment.get("PYTHONHASHSEED") or "0"
    environment.update(thread_limits(workers, environment))
    if device != "cpu":
        environment.setdefault(_KERNEL_CACHE, str(Path.home() / ".cache" / "platoon" / "gpuarray"))
    environment["THEANO_FLAGS"] = worker_flags(device, environment)
    return environment


def thread_limits(workers: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that share the cores among several workers; none if the user set any."""
    # A value for OpenBLAS or MKL would override the user's OMP_NUM_THREADS.
    if workers < 2 or any(environment.get(name) for name in THREAD_VARIABLES):
        return {}
    return dict.fromkeys(LIMITED_THREADS, str(max(1, available_cores() // workers)))


def training_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all workers need alike: the rule, its period, and timeouts."""
    found = {name: environment[name] for name in (RULE, EVERY_N_BATCHES) if name in environment}
    changed = timeouts.of_job(environment)
    return {**found, TIMEOUTS: changed} if changed else found


def adopt_training(environment: MutableMapping[str, str], training: Mapping[str, str]) -> None:
    """Replace an environment's `training_variables` by the job's; warn about different ones."""
    for name, value in training_variables(environment).items():
        if training.get(name) != value:
            log.warning(
                "ignoring %s=%s: the job was launched %s, which applies to all its workers",
                name,
                value,
                f"with {name}={training[name]}" if name in training else "without it",
            )
        if name != TIMEOUTS:
            environment.pop(name, None)
    timeouts.adopt_job(environment, training.get(TIMEOUTS, ""))
    environment.update({name: value for name, value in training.items() if name != TIMEOUTS})


def _framework_group(address: str, workers: int, rank: int) -> dict[str, str]:
    """Return what Keras and JAX read for a script that uses a framework's own collectives."""
    return {
        _ADDRESSES: address,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(workers),
        FRAMEWORK_RANK: str(rank),
        "JAX_COORDINATOR_ADDRESS": address,
    }


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address of this host with a free port."""
    is_v6 = ":" in host
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
    return f"[{host}]:{port}" if is_v6 else f"{host}:{port}"


def placed(files: JobFiles, start: Start) -> Start:
    """Add the variables by which a worker finds its job to its environment."""
    variables = {JOB: files.folder, RANK: str(start.rank), WORKERS: str(files.size), LAUNCHER: str(os.getpid())}
    if start.log_file is not None:
        variables[ERROR_FILE] = str(error_file(start.log_file).absolute())
    return start._replace(environment={**start.environment, **variables})


def worker_starts(
    program: Program,
    args: Sequence[str],
    devices: Sequence[str],
    log_folder: Path | None,
    world: World = ONE_HOST,
    address: str = "",
) -> list[Start]:
    """Return how each worker is started; make the folders that it needs."""
    first = world.ranks_here.start if world.several else 0
    size = world.size if world.several else len(devices)
    command = [*python_main("platoon_base.worker_process.child"), *program.argv, *args]
    environments = [worker_environment(device, len(devices), os.environ) for device in devices]
    if size > 1 and _ADDRESSES not in os.environ:
        address = address or free_address()
        for rank, environment in enumerate(environments, first):
            environment.update(_framework_group(address, size, rank))
    for device, environment in zip(devices, environments):
        # pocl's cache is not safe to share: compiled kernels crashed.
        if device.startswith("opencl"):
            name = f"pocl{environments.index(environment)}"
            environment.setdefault("POCL_CACHE_DIR", str(Path.home() / ".cache" / "platoon" / name))
    _make_kernel_caches(environments)
    return [
        Start(rank, command, environment, None if log_folder is None else log_file(log_folder, rank))
        for rank, environment in enumerate(environments, first)
    ]


def _make_kernel_caches(environments: Sequence[Mapping[str, str]]) -> None:
    """Make the folders in which libgpuarray keeps compiled kernels; it does not."""
    caches = (_KERNEL_CACHE, "POCL_CACHE_DIR")
    for folder in {environment[name] for environment in environments for name in caches if environment.get(name)}:
        with contextlib.suppress(OSError):  # Each process then compiles its kernels.
            Path(folder).mkdir(parents=True, exist_ok=True)
