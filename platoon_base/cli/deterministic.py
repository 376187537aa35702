"""The option ``--deterministic`` of `platoon launch`; see docs/deterministic.md."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click

from platoon_base.compat.theano_flags import deterministic_flags
from platoon_base.errors import ConfigurationError
from platoon_base.job.hosting import JobOptions
from platoon_base.system.environment import DETERMINISTIC, LIMITED_THREADS, threads_of
from platoon_base.system.limits import available_cores

# Frameworks and their libraries read these variables when they start.
_VARIABLES = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # See NVIDIA, cuBLAS, "Results Reproducibility".
    "MKL_CBWR": "AUTO",  # Reductions and scheduling are fixed on the same processor.
    "TF_DETERMINISTIC_OPS": "1",
    # NCCL chooses an algorithm by size and topology. A ring adds in a fixed order; NVLink's
    # switches (NVLS) do not.
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
_THREADS_OF_TENSORFLOW = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_XLA_THREADS = "--xla_cpu_multi_thread_eigen=false"
# Includes --xla_gpu_exclude_nondeterministic_ops, which older XLA lacks.
_XLA = "--xla_gpu_deterministic_ops=true"


def deterministic_job(options: JobOptions) -> JobOptions:
    """Return a job's options with ``--deterministic``; set the environment of its workers."""
    saved = ""
    if options.resume is not None:
        _, about = options.resume
        options, saved = replace(options, seed=about.seed), about.threads
    os.environ.update(deterministic_environment(os.environ, options.seed, saved))
    return replace(options, deterministic=True, fail_fast="always")


def deterministic_environment(base: Mapping[str, str], seed: int, saved_threads: str = "") -> dict[str, str]:
    """Return the variables for reproducible results; those of the user stay."""
    threads = _threads(base, saved_threads)
    found = {name: base.get(name) or value for name, value in _VARIABLES.items()}
    flags = base.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags:
        flags = f"{flags} {_XLA}".strip()
    if threads and "xla_cpu_multi_thread_eigen" not in flags:
        flags = f"{flags} {_XLA_THREADS}"
    return {
        **found,
        **threads,
        "XLA_FLAGS": flags,
        "THEANO_FLAGS": deterministic_flags(base),
        DETERMINISTIC: str(seed),
    }


def _threads(base: Mapping[str, str], saved: str) -> dict[str, str]:
    """Return the thread variables to set: one thread, or as in the resumed run."""
    given = threads_of(base)
    if given and saved and given != saved:
        raise ConfigurationError(
            f"got --deterministic with {given}, and the checkpoint is of a run with {saved}: "
            "another number of threads changes the bits; set the same variables, or none"
        )
    wanted = given or saved
    most = max((int(n) for _, n in _pairs(wanted) if n.isdecimal()), default=1)
    cores = available_cores()
    if most > cores:
        raise ConfigurationError(
            f"got --deterministic with {wanted} and {cores} core{'s' * (cores > 1)}: libraries "
            "would use fewer threads, which changes the bits; set at most as many threads as "
            "cores, or none of these variables"
        )
    if given:
        return {}
    one = dict.fromkeys([*LIMITED_THREADS, *_THREADS_OF_TENSORFLOW], "1")
    return dict(_pairs(saved)) if saved else one


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, number) for name, _, number in (word.partition("=") for word in text.split())]


def _require_possible(values: Mapping[str, Any]) -> None:
    because = {
        "max_restarts": "a restarted worker starts from the center at a time that differs "
        "between runs; leave --max-restarts out, and continue with "
        "--checkpoint-every and --resume",
        "allow_failures": "the time at which the job continues without a failed worker differs "
        "between runs; leave --allow-failures out",
        "data_server": "the server sends each mini-batch to the worker that asks first; leave "
        "--data-server out, and let each worker read its shard (Worker.shard), or "
        "load ahead (platoon_base.data.load_ahead)",
    }
    for name, why in because.items():
        if values.get(name):
            raise ConfigurationError(f"got --deterministic and --{name.replace('_', '-')}: {why}")
    hosts = getattr(values.get("hosts"), "place", None)
    if hosts is not None and hosts.hosts > 1:
        raise ConfigurationError(
            f"got --deterministic for a job on {hosts.hosts} hosts: messages between hosts arrive "
            "at no fixed time, and the hosts average their centers by the clock; run on one host "
            "(--nnodes 1)"
        )
    saves = values.get("checkpoint_every") is not None or values.get("resume") is not None
    if saves and values.get("center") == "device":
        raise ConfigurationError(
            "got --deterministic, checkpoints and --center device: a center on GPUs is saved at "
            "no fixed time, so a resumed run would differ; leave --center out, which keeps the "
            "center in shared memory"
        )


_deterministic = click.option(
    "--deterministic",
    is_flag=True,
    help="Compute the same bits in each run: seeds, deterministic kernels, and access to the "
    "center in the order of the ranks. Implies --fail-fast.",
)


def deterministic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option to a command, and refuse options that it excludes."""

    @functools.wraps(command)
    def with_determinism(*args: Any, deterministic: bool, **kwargs: Any) -> Any:
        if deterministic:
            _require_possible(kwargs)
            saves = kwargs.get("checkpoint_every") is not None or kwargs.get("resume") is not None
            if saves and kwargs.get("center") == "auto":
                kwargs["center"] = "host"
        return command(*args, deterministic=deterministic, **kwargs)

    return _deterministic(with_determinism)
