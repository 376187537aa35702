"""Workers started from a notebook: several new processes call a function of the kernel."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.system.environment import JOB


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    *,
    devices: Sequence[str] = (),
    log_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    grace_s: float | None = None,
) -> Any:
    """Call a function in several workers of a new job, from a cell of a notebook.

    The workers are new processes, not forks of the kernel, where a framework may have threads or
    use a GPU. They get the function by value, with the variables of the notebook that it uses;
    changes of these do not reach the notebook. The cell shows a live table and the output of rank
    0. An interrupt of the kernel stops all workers. On systems other than Linux the function is
    called once, in this process, with a warning.

    Parameters
    ----------
    function : callable
        The variables of the notebook that it uses must be picklable.
    args : sequence
        Its arguments, the same for all workers.
    num_processes : int, optional
        By default one for each CUDA device, or without these one for each core, at most 4.
    devices : sequence of str
        One for each worker, such as ``["cuda0", "cuda1"]``, or ``["cpu"]`` for the CPU.
    log_dir : path, optional
        Folder for the output of all workers; by default ``platoon_logs/notebook/TIME``.
    seed : int
        The same on all workers.
    grace_s : float, optional
        Seconds that interrupted workers have to exit; by default the timeout ``grace``.

    Returns
    -------
    object
        The value that the function returned on rank 0.

    Raises
    ------
    WorkerFailedError
        If a worker has failed, with its traceback, after all workers have ended.
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
    if sys.platform != "linux":
        text = f"jobs run only on Linux, and this is {sys.platform}: calling the function once, in this process"
        warnings.warn(text, PlatoonWarning, stacklevel=2)
        return function(*args)
    from platoon_base.cli.notebook_job import run

    return run(function, args, num_processes, devices, log_dir, seed, grace_s)


def _require_launchable(function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(f"got {function!r}: pass the function itself, and its arguments as args=(...)")
    if os.environ.get(JOB):
        raise ConfigurationError(
            "notebook_launcher was called by a worker: call it in the notebook, and connect() in the function"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "notebook_launcher was called in a thread, which an interrupt of the kernel would "
            "not reach: call it in a cell"
        )
