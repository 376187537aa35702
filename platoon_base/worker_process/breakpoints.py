"""`breakpoint()` in a worker: the debugger uses the launcher's terminal, if that is lent.

The worker's output goes to its log, and its input is empty, so the debugger opens the terminal
itself. Before that, the worker makes a request file beside its log; the launcher removes its live
table and the file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import ERROR_FILE, JOB, RANK, TERMINAL
from platoon_base.system.job_paths import path_of
from platoon_base.timeouts import SHORT_POLL_S, timeout


def lend_terminal(workers: int) -> None:
    """Set the terminal in the environment of the next worker, if it is the only one."""
    os.environ.pop(TERMINAL, None)
    if workers == 1 and os.isatty(0) and os.isatty(1):
        with contextlib.suppress(OSError):  # The terminal may have no path in this container.
            os.environ[TERMINAL] = os.ttyname(0)


def hook_breakpoints() -> None:
    """Make `breakpoint()` use the terminal, unless PYTHONBREAKPOINT or a hook is set."""
    if JOB not in os.environ or RANK not in os.environ or "PYTHONBREAKPOINT" in os.environ:
        return
    if sys.breakpointhook is not sys.__breakpointhook__:
        return
    name, errors = os.environ.pop(TERMINAL, ""), os.environ.get(ERROR_FILE, "")
    if not name or not errors:
        sys.breakpointhook = _refuse
        return
    wish = path_of(Path(errors).parent, "terminal")

    def stop_here(*args: Any, **kwargs: Any) -> None:
        import pdb  # The import takes 4 ms, and few workers stop.

        # A launcher that has lent its terminal polls for the file five times a second.
        with contextlib.suppress(FileExistsError):
            wish.touch(exist_ok=False)  # This follows no link.
        deadline = time.monotonic() + timeout("answer")
        while wish.exists() and time.monotonic() < deadline:
            time.sleep(SHORT_POLL_S)
        wish.unlink(missing_ok=True)  # The launcher must not find it later.
        stream = os.fdopen(os.open(name, os.O_RDWR | os.O_NOCTTY), "r+b", buffering=0)
        terminal = _Terminal(stream)
        # With pdb's SIGINT handler, the launcher's signal would start the debugger.
        pdb.Pdb(stdin=terminal, stdout=terminal, nosigint=True).set_trace(sys._getframe(1))  # type: ignore[arg-type]

    sys.breakpointhook = stop_here


class _Terminal:
    """A terminal as unbuffered text; `open` refuses one, since it cannot seek."""

    encoding = "utf-8"

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self) -> str:
        return bytes(self._stream.readline()).decode(errors="replace")

    def write(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[self._stream.write(data) :]
        return len(text)

    def flush(self) -> None:
        """Do nothing: all has been written."""


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise ConfigurationError(
        "breakpoint() needs a terminal, and this worker has none: start the job from a terminal "
        "with `platoon launch -n 1`, or set PYTHONBREAKPOINT to a debugger that needs none (0 "
        "skips breakpoints)"
    )
