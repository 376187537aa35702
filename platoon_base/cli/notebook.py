"""Workers started from a notebook: a function of a running kernel, called in several fresh processes."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from platoon_base.cli.configuration import chosen_devices
from platoon_base.cli.failures import describe
from platoon_base.cli.launcher import choose_center, launch, require_runnable
from platoon_base.cli.log_folder import LogFolder, log_file, new_log_folder
from platoon_base.cli.log_lines import LogLines
from platoon_base.controller.outcome import Result
from platoon_base.controller.program import Program
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import BackendUnavailableError, ConfigurationError, WorkerFailedError
from platoon_base.job.hosting import JobOptions
from platoon_base.system.environment import JOB

__all__ = ["notebook_launcher"]

_PROGRAM = Program("platoon_base.cli.notebook_worker", is_module=True)
_LOOK_EVERY_S = 0.2


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    *,
    devices: Sequence[str] = (),
    log_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    grace_s: float = 10.0,
) -> Any:
    """Call a function in several workers of a new job, from a cell of a notebook, and wait for the end of all.

    The workers are new processes, not forks of the kernel: a framework that is loaded there has threads, and may hold
    a GPU. They get the function by value, with the variables of the notebook that it uses. Changes of these stay in
    the workers. The cell shows the output of rank 0. An interrupt of the kernel ends all workers.

    Parameters
    ----------
    function : callable
        Such as one defined in a cell. Variables of the notebook that it uses must be such that they can be pickled.
    args : sequence
        Its arguments, the same for all workers.
    num_processes : int, optional
        By default as many as ``platoon launch`` starts: one for each CUDA device, or for each core, at most 4.
    devices : sequence of str
        One for each worker, such as ``["cuda0", "cuda1"]``, or ``["cpu"]`` for the CPU.
    log_dir : path, optional
        For the output of all workers; by default ``platoon_logs/notebook/TIME``.
    seed : int
        Common to all workers.
    grace_s : float
        How long interrupted workers have to end.

    Returns
    -------
    object
        What the function returned on rank 0.

    Raises
    ------
    WorkerFailedError
        If a worker has failed, with its traceback; all of them have ended then.
    KeyboardInterrupt
        If the kernel was interrupted.
    ConfigurationError
        If the function cannot be sent to another process, or cannot be launched from here.

    Examples
    --------
    >>> def train(epochs):                                                          # doctest: +SKIP
    ...     model = build()
    ...     return model.fit(*shard(x, y), epochs=epochs, callbacks=distribute()).history
    >>> history = notebook_launcher(train, (5,), num_processes=2)                   # doctest: +SKIP
    """
    _require_launchable(function)
    chosen = chosen_devices(num_processes, tuple(devices)).devices
    require_runnable(_PROGRAM, chosen)
    folder = new_log_folder("notebook") if log_dir is None else Path(log_dir)
    with LogFolder(folder), tempfile.TemporaryDirectory(prefix="platoon-notebook-") as box, StopSignals() as signals:
        call, returned = Path(box, "call"), Path(box, "returned")
        call.write_bytes(_pickled(function, args))
        shown = LogLines([log_file(folder, 0)], "\0", whole={0})
        options = JobOptions(
            seed=seed,
            center=choose_center("auto", chosen),
            observer=lambda snapshot: _show(shown),
            observe_every_s=_LOOK_EVERY_S,
            grace_s=grace_s,
        )
        result = launch(_PROGRAM, [str(call), str(returned)], chosen, folder, options, signals)
        _show(shown, last=True)
        _require_success(result, folder)
        if not returned.exists():
            raise WorkerFailedError(
                "rank 0 ended its process within the function, by sys.exit() or the like, so there is no value: return "
                f"from the function instead; the workers' logs: {folder}"
            )
        return _cloudpickle().loads(returned.read_bytes())


def _require_launchable(function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(f"got {function!r}: pass the function itself, and its arguments as args=(...)")
    if os.environ.get(JOB):
        raise ConfigurationError(
            "notebook_launcher was called by a worker: call it in the notebook, and connect() within the function"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "notebook_launcher was called in a thread: an interrupt of the kernel would not reach it; call it in a cell"
        )


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as exc:
        raise BackendUnavailableError(
            "notebook_launcher needs cloudpickle, which sends functions of a notebook to other processes: "
            "pip install cloudpickle"
        ) from exc
    return cloudpickle


def _pickled(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Return the call, with the search path and the cells' source lines, which tracebacks show."""
    cells = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
    try:
        call = _cloudpickle().dumps((function, tuple(args)))
    except Exception as exc:
        name = getattr(function, "__name__", repr(function))
        raise ConfigurationError(
            f"got {name}, which cannot be sent to another process ({type(exc).__name__}: {exc}): what it uses of the "
            "notebook must be such that it can be pickled; open files, sessions and the like within the function"
        ) from exc
    pickled: bytes = _cloudpickle().dumps((list(sys.path), cells, call))
    return pickled


def _show(lines: LogLines, last: bool = False) -> None:
    for line in lines.new(last):
        sys.stdout.write(f"{line.text}\n")
    sys.stdout.flush()


def _require_success(result: Result, folder: Path) -> None:
    if result.interrupted and result.status == 128 + signal.SIGINT:
        raise KeyboardInterrupt("all workers have been ended")
    if result.failed is not None:
        raise WorkerFailedError(f"{describe(folder, result.failed)}\nAll workers have ended; their logs: {folder}")
    if result.status:
        raise WorkerFailedError(f"the job has ended by {result.stopped_by}; the workers' logs: {folder}")
