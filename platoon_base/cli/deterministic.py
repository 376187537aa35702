"""The options ``--deterministic``, ``--record-order`` and ``--replay-order`` of `platoon launch`.

docs/deterministic.md says what has the same bits in two runs, and what cannot.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from platoon_base import __version__
from platoon_base.cli.commands.arguments import result_file
from platoon_base.compat.theano_flags import deterministic_flags
from platoon_base.errors import ConfigurationError
from platoon_base.job.hosting import JobOptions
from platoon_base.shm.turn_order import Header, begin_order, complete_order, read_order
from platoon_base.system.determinism import LIMITED_THREADS, threads_of
from platoon_base.system.environment import DETERMINISTIC, RECORD_ORDER, REPLAY_ORDER
from platoon_base.system.limits import available_cores

__all__ = ["Determinism", "deterministic_environment", "deterministic_options"]

log = logging.getLogger(__name__)

# What frameworks read when they are imported, or when a library of theirs starts.
_VARIABLES = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS with several streams, says NVIDIA's "Results Reproducibility"
    "MKL_CBWR": "AUTO",  # fixed reductions and scheduling, on the same processor
    "TF_DETERMINISTIC_OPS": "1",
    # NCCL chooses an algorithm by size and topology. A ring adds in an order that the topology fixes; NVLink's
    # switches (NVLS) add in theirs.
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
_THREADS_OF_TENSORFLOW = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_XLA_THREADS = "--xla_cpu_multi_thread_eigen=false"
_XLA = "--xla_gpu_deterministic_ops=true"  # it includes --xla_gpu_exclude_nondeterministic_ops, which older XLA lacks


class Determinism(NamedTuple):
    """The options, as they were given.

    Attributes
    ----------
    on : bool
        Whether the bits of two runs are to be the same.
    record, replay : Path or None
        The file of the order in which workers use the center.
    """

    on: bool
    record: Path | None = None
    replay: Path | None = None

    @property
    def given(self) -> str:
        """The option that asks for it, for messages."""
        named = {"--record-order": self.record, "--replay-order": self.replay}
        return next((name for name, path in named.items() if path is not None), "--deterministic")

    def of_job(self, options: JobOptions, devices: Sequence[str], seed: int | None, words: Sequence[str]) -> JobOptions:
        """Return a job's options for these; set the environment that its workers inherit, and begin the record.

        Parameters
        ----------
        options : JobOptions
            With the checkpoint that it goes on from, if any.
        devices : sequence of str
        seed : int or None
            As it was given.
        words : sequence of str
            The program and its arguments.
        """
        if not self.on:
            return options
        if self.replay is not None:
            given = seed if options.resume is None else options.resume[1].seed
            options = options._replace(seed=_replayed_seed(self.replay, devices, given, words))
        elif options.resume is not None:
            options = options._replace(seed=options.resume[1].seed)
        if self.record is not None:
            header = Header(
                version=__version__, workers=len(devices), seed=options.seed, devices=list(devices), program=list(words)
            )
            begin_order(self.record, header)
        saved = "" if options.resume is None else options.resume[1].threads
        os.environ.update(deterministic_environment(os.environ, options.seed, saved))
        for name, path in ((RECORD_ORDER, self.record), (REPLAY_ORDER, self.replay)):
            os.environ.pop(name, None)
            if path is not None:
                os.environ[name] = str(path.absolute())
        return options._replace(deterministic=True, fail_fast="always")

    def complete(self, status: int) -> None:
        """Mark the record as that of a run that came to its end, if it did."""
        if self.record is not None and not status:
            complete_order(self.record)
            log.info("the order of this run is in %s: --replay-order %s follows it", self.record, self.record)


def _replayed_seed(path: Path, devices: Sequence[str], seed: int | None, words: Sequence[str]) -> int:
    """Return the seed of a recorded run; raise if this one is of other workers or of another seed."""
    header, _ = read_order(path)
    if len(devices) != header.workers:
        raise ConfigurationError(
            f"got {len(devices)} workers, {path} is the order of {header.workers}: launch with -n {header.workers}"
        )
    if seed not in (None, header.seed):
        raise ConfigurationError(
            f"got --seed {seed}, or a checkpoint of it, {path} is of a run with --seed {header.seed}: leave --seed "
            "out, and resume from a checkpoint of that run's seed"
        )
    if header.version != __version__:
        log.warning("%s was recorded by version %s, this is %s: bits may differ", path, header.version, __version__)
    if header.program != list(words):
        log.warning("%s is of `%s`, this is `%s`", path, " ".join(header.program), " ".join(words))
    if header.devices != list(devices):
        log.warning("%s is of workers on %s, these are on %s", path, ", ".join(header.devices), ", ".join(devices))
    return header.seed


def deterministic_environment(base: Mapping[str, str], seed: int, saved_threads: str = "") -> dict[str, str]:
    """Return the variables to set so that frameworks compute the same bits each time; those of the user stay.

    Parameters
    ----------
    base : mapping
        The environment.
    seed : int
        Of the job.
    saved_threads : str
        The number of threads of the run that is resumed, as `threads_of` returns it; empty if it is not known.
    """
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
    """Return the variables to set: one thread, or as many as the run had that is resumed; none if the user has set any.

    Raises
    ------
    ConfigurationError
        If they are not those of the run that is resumed, or there are not as many cores.
    """
    given = threads_of(base)
    if given and saved and given != saved:
        raise ConfigurationError(
            f"got --deterministic with {given}, the checkpoint is of a run with {saved}: another number of threads "
            "makes other bits; set the same variables, or none"
        )
    wanted = given or saved
    most = max((int(n) for _, n in _pairs(wanted) if n.isdecimal()), default=1)
    cores = available_cores()
    if most > cores:
        raise ConfigurationError(
            f"got --deterministic with {wanted} and {cores} core{'s' * (cores > 1)}: libraries would use fewer "
            "threads here, which makes other bits; set as many as there are cores at most, or none of these variables"
        )
    if given:
        return {}
    one = dict.fromkeys([*LIMITED_THREADS, *_THREADS_OF_TENSORFLOW], "1")
    return dict(_pairs(saved)) if saved else one


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, number) for name, _, number in (word.partition("=") for word in text.split())]


def _require_possible(given: str, values: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` about an option by which two runs would differ."""
    because = {
        "max_restarts": "a worker that is started again takes the center over at a moment of its own; leave "
        "--max-restarts out, and go on by --checkpoint-every and --resume",
        "allow_failures": "the others would go on without a worker from a moment on that no second run repeats; leave "
        "--allow-failures out",
        "data_server": "the server hands its mini-batches to whoever asks first; leave --data-server out, and let each "
        "worker read its shard (Worker.shard), or load ahead (platoon_base.data.load_ahead)",
    }
    for name, why in because.items():
        if values.get(name):
            raise ConfigurationError(f"got {given} and --{name.replace('_', '-')}: {why}")
    hosts = getattr(values.get("hosts"), "place", None)
    if hosts is not None and hosts.hosts > 1:
        raise ConfigurationError(
            f"got {given} for a job on {hosts.hosts} hosts: what arrives from another host does so at no fixed moment, "
            "and the hosts' centers come together by the clock; run on one host (--nnodes 1)"
        )
    saves = values.get("checkpoint_every") is not None or values.get("resume") is not None
    if saves and values.get("center") == "device":
        raise ConfigurationError(
            f"got {given}, checkpoints and --center device: the mirror of a center on GPUs is of no fixed moment, so "
            "that a resumed run would differ; leave --center out, and the center is in shared memory"
        )


_OPTIONS = (
    click.option(
        "--deterministic",
        is_flag=True,
        help="The same bits in each run: seeds, deterministic kernels, and workers that use the center in the order of "
        "their ranks. Implies --fail-fast.",
    ),
    click.option(
        "--record-order",
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=result_file,
        help="--deterministic, but workers use the center as they come; FILE gets the order.",
    ),
    click.option(
        "--replay-order",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="--deterministic, in the order that an earlier run has left in FILE.",
    ),
)


def deterministic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as ``determinism``, a `Determinism`."""

    @functools.wraps(command)
    def with_determinism(
        *args: Any, deterministic: bool, record_order: Path | None, replay_order: Path | None, **kwargs: Any
    ) -> Any:
        if record_order is not None and replay_order is not None:
            raise ConfigurationError("got --record-order and --replay-order: a run makes an order or follows one")
        wanted = Determinism(deterministic or bool(record_order or replay_order), record_order, replay_order)
        if wanted.on:
            _require_possible(wanted.given, kwargs)
            saves = kwargs.get("checkpoint_every") is not None or kwargs.get("resume") is not None
            if saves and kwargs.get("center") == "auto":
                kwargs["center"] = "host"
        return command(*args, determinism=wanted, **kwargs)

    wrapped: Callable[..., Any] = with_determinism
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
