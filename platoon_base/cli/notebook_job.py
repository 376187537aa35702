"""The job of `notebook_launcher`: sends the call to the workers and shows their output."""

from __future__ import annotations

import io
import linecache
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from platoon_base.cli.configuration import chosen_devices
from platoon_base.cli.launcher import choose_center, launch, require_runnable
from platoon_base.cli.notebook_worker import code_of_file
from platoon_base.cli.recent import Recent
from platoon_base.cli.run_files import log_folder, new_log_folder
from platoon_base.cli.table import table
from platoon_base.cli.worker_output import LogLines, WorkerWarnings, describe
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import BackendUnavailableError, ConfigurationError, WorkerFailedError
from platoon_base.job.hosting import JobOptions
from platoon_base.job.starting import log_file
from platoon_base.timeouts import POLL_S
from platoon_base.worker_process.program import Program

_DRAW_S, _WIDTH, _HEIGHT = 1.0, 100, 40


class _Cell:
    """Shows a job in the running cell: the output of rank 0 and, in a notebook's kernel, a table."""

    def __init__(self, title: str, folder: Path, workers: int) -> None:
        self._title = title
        self._display = _display_of_kernel()
        self._handle: Any = None
        self._recent = Recent()
        self._next = 0.0
        self._lines = LogLines([log_file(folder, rank) for rank in range(workers)], whole={0})
        self._warnings = WorkerWarnings(workers)

    def take(self, snapshot: Snapshot) -> None:
        """Draw a snapshot, unless one was drawn less than a second ago, and write new output."""
        now = time.monotonic()
        self._recent.take(snapshot, now)
        if now >= self._next:
            self._next = now + _DRAW_S
            self._draw()
        self._write()

    def close(self) -> None:
        self._draw()
        self._write(last=True)

    def _write(self, last: bool = False) -> None:
        now = time.monotonic()
        for line in self._lines.new(last):
            if line.is_warning:
                self._warnings.take(line, now)
            else:
                sys.stdout.write(f"{line.text}\n")
        for text in self._warnings.new(now, last):
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def _draw(self) -> None:
        if self._display is None or not self._recent.taken:
            return
        shown = {"text/plain": "\n".join(table(self._recent, _WIDTH, _HEIGHT, self._title))}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _display_of_kernel() -> Any:
    """Return IPython's function for rich output; None outside of a kernel."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # type: ignore[import-not-found,unused-ignore]
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    return display if hasattr(get_ipython(), "kernel") else None


_PROGRAM = Program("platoon_base.cli.notebook_worker", is_module=True)


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    num_processes: int | None,
    devices: Sequence[str],
    log_dir: str | os.PathLike[str] | None,
    seed: int,
    grace_s: float | None,
) -> Any:
    """Call a function in the workers of a new job; see `notebook_launcher`."""
    chosen = chosen_devices(num_processes, tuple(devices)).devices
    require_runnable(_PROGRAM, chosen)
    folder = new_log_folder("notebook") if log_dir is None else Path(log_dir)
    with log_folder(folder), tempfile.TemporaryDirectory(prefix="platoon-notebook-") as box, StopSignals() as signals:
        call, returned = Path(box, "call"), Path(box, "returned")
        call.write_bytes(_pickled(function, args))
        cell = _Cell(f"{getattr(function, '__name__', 'function')}()", folder, len(chosen))
        options = JobOptions(
            seed=seed,
            center=choose_center("auto", chosen),
            observer=cell.take,
            observe_every_s=POLL_S,
            fail_fast="early",
            grace_s=grace_s,
        )
        result = launch(_PROGRAM, [str(call), str(returned)], chosen, folder, options, signals)
        cell.close()
        _require_success(result, folder)
        if not returned.exists():
            raise WorkerFailedError(
                "rank 0 exited inside the function, with sys.exit() for example, so there is no "
                f"value: return from the function instead; the workers' logs: {folder}"
            )
        return _cloudpickle().loads(returned.read_bytes())


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as exc:
        raise BackendUnavailableError(
            "notebook_launcher needs cloudpickle to send a function of the notebook to other "
            "processes: pip install cloudpickle"
        ) from exc
    return cloudpickle


def _pickled(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Pickle the call, the module search path, and the source of the cells for tracebacks."""
    cells = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
    try:
        call = _with_names_of_files((function, tuple(args)))
    except Exception as exc:
        name = getattr(function, "__name__", repr(function))
        raise ConfigurationError(
            f"got {name}, which cannot be sent to another process ({type(exc).__name__}: {exc}): "
            "everything it uses of the notebook must be picklable; open files, sessions and the "
            "like in the function"
        ) from exc
    pickled: bytes = _cloudpickle().dumps((list(sys.path), cells, call))
    return pickled


def _with_names_of_files(value: Any) -> bytes:
    """Pickle a value with the file names of its code, which cloudpickle 3.1.3 drops."""
    pickler: Any = _cloudpickle().Pickler

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, CodeType):
                return super().reducer_override(value)
            make, arguments = self.dispatch_table[CodeType](value)
            return code_of_file, (value.co_filename, make, arguments)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _require_success(result: Result, folder: Path) -> None:
    if result.interrupted and result.status == 128 + signal.SIGINT:
        raise KeyboardInterrupt("all workers have ended")
    if result.failed is not None:
        raise WorkerFailedError(f"{describe(folder, result.failed)}\nAll workers have ended; their logs: {folder}")
    if result.status:
        raise WorkerFailedError(f"the job ended with {result.stopped_by}; the workers' logs: {folder}")
