"""What one worker does for all: print, report, and write a file."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from typing import Any

from platoon_base.job.joining import connect, is_main

_saved: list[str] = []  # The files, of which the final table tells.


def print(*values: Any, **options: Any) -> None:
    """Print on one worker, the one of `is_main`."""
    if is_main():
        builtins.print(*values, **options)


def report(**values: float | str) -> None:
    """Show values on the screen, in the final table and in trackers: ``report(loss=0.3)``.

    Those of one worker count, the one of `is_main`; nobody waits.
    """
    worker = connect()
    if worker.is_leader:
        worker.report(values)
    if "loss" in values:
        worker.progress(loss=float(values["loss"]))


def write_once(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Call ``write(part)`` on one worker, then rename the file; readers see all of it or none."""
    if is_main():
        part = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            write(part)
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.remove(part)
        _saved[:] = [*(each for each in _saved if each != os.fspath(path)), os.fspath(path)]
        connect().report({"saved": ", ".join(_saved)})
