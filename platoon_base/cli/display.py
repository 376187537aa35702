"""The display of a running job: a live table on a terminal, plain lines in a pipe, a summary at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from platoon_base.checkpoints.writer import Tally
from platoon_base.cli.recent import Recent
from platoon_base.cli.table import plain_line, table
from platoon_base.controller.controller import Result, Snapshot
from platoon_base.system.own_files import write_where_named

__all__ = ["Display", "is_live", "summary", "write_summary"]

_LINES_ABOVE, _LEAST_HEIGHT = 3, 4  # there is room for output of the workers above the table
_LEAST_S, _LONGEST_S = 2.0, 60.0  # between two lines in a pipe


class Display:
    """Shows snapshots of a job on a console; a context manager.

    Parameters
    ----------
    console : rich.console.Console
        A terminal gets a table that is drawn again and again. A pipe, or a terminal that cannot move its cursor
        (TERM=dumb), gets a short line for each change.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = None
        if is_live(console):
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._paused = False
        self._recent = Recent()
        self._printed: tuple[str, ...] = ()
        self._printed_at = -math.inf

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._print(least_s=0.0)

    def show(self, snapshot: Snapshot, draw: bool = True) -> None:
        """Show the state of the job; on a terminal without ``draw`` only when something is printed above it."""
        self._recent.take(snapshot, time.monotonic())
        if self._paused:
            return
        if self._live is not None:
            size = self._console.size
            lines = table(self._recent, size.width, max(_LEAST_HEIGHT, size.height - _LINES_ABOVE))
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=draw)
        else:
            self._print(_LEAST_S)

    def pause(self) -> bool:
        """Show nothing from now on, since a debugger has the terminal; tells whether that is new."""
        if self._paused:
            return False
        self._paused = True
        if self._live is not None:
            self._live.stop()
        return True

    def _print(self, least_s: float) -> None:
        """Print a line if there is a change; values that change often are not printed more often than ``least_s``."""
        snapshot = self._recent.snapshot
        if snapshot is None:
            return
        key, line = plain_line(self._recent)
        passed = time.monotonic() - self._printed_at
        of_workers = key[:1] != self._printed[:1]
        if of_workers or (key != self._printed and passed >= least_s) or passed >= _LONGEST_S:
            self._printed, self._printed_at = key, time.monotonic()
            text = f"[{snapshot.seconds:6.1f} s] {line}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def is_live(console: Console) -> bool:
    """Whether a console can draw over what it has drawn."""
    return console.is_terminal and not console.is_dumb_terminal


def summary(result: Result, workers: int) -> dict[str, Any]:
    """Return the summary of a job that ended: the reported values, and how it ended."""
    return {
        **result.reported,
        "workers": workers,
        "seconds": round(result.seconds, 3),
        "stopped_by": result.stopped_by,
        "restarts": result.restarts,
        "shared_nothing": list(result.shared_nothing),
        **_of_checkpoints(result.checkpoints),
        "status": result.status,
    }


def _of_checkpoints(tally: Tally | None) -> dict[str, Any]:
    if tally is None:
        return {}
    found = {"checkpoints": tally.written, "checkpoints_missed": tally.missed}
    return {**found, "not_saved": tally.unsaved} if tally.unsaved else found


def write_summary(path: Path, values: Mapping[str, Any]) -> None:
    """Write a summary as JSON, which knows no NaN and no infinity: null stands for them."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    write_where_named(path, (json.dumps(plain, indent=2) + "\n").encode())
