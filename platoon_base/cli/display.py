"""The display of a running job: a live table on a terminal, lines in a pipe, a summary."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from platoon_base.checkpoints.writer import Tally
from platoon_base.cli.recent import BLOCKS, Recent
from platoon_base.cli.table import Line, draw, plain_line
from platoon_base.controller.outcome import Result, Snapshot

__all__ = ["Display", "is_live", "painted", "shows_ascii_only", "summary"]

_STYLES = {"title": "bold", "heading": "dim"}  # whole lines
_TREND = (rf"[{BLOCKS}]+", "cyan")
_PARTS = {
    "bar": ((r"^[█#]+", "green"), (r"[░-]+(?=  )", "dim")),
    "workers": (
        (r"\btraining\b", "green"),
        (r"\b(?:importing|joined|compiling|waiting)\b", "yellow"),
        (r"\b(?:lost|interrupted|no step for \d+ \w+(?: \d+ min)?)", "bold red"),
        _TREND,
    ),
    "total": ((r"^stopping:.*", "bold yellow"),),
    "values": ((r"CHECKPOINTS MISSED \d+", "bold red"), (r"best \S+(?: in epoch \d+)?$", "green"), _TREND),
}


def painted(lines: Iterable[Line]) -> Text:
    """Return the table in colours; rich drops them where NO_COLOR is set."""
    text = Text(no_wrap=True, overflow="crop")
    for i, line in enumerate(lines):
        part = Text(("\n" if i else "") + line.text, style=_STYLES.get(line.kind, ""))
        for pattern, style in _PARTS.get(line.kind, ()):
            part.highlight_regex(re.compile(pattern, re.MULTILINE), style)
        text.append_text(part)
    return text


def shows_ascii_only(console: Console, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the encoding or the locale is not UTF-8, and would garble bars."""
    environment = os.environ if environment is None else environment
    language, characters = environment.get("LANG", ""), environment.get("LC_CTYPE", "")
    if characters == "C.UTF-8" and language in ("", "C", "POSIX"):
        characters = ""  # Python has set it for its own use only.
    locale = environment.get("LC_ALL") or characters or language
    names = (console.encoding, locale.partition(".")[2].partition("@")[0])
    return any(name.lower().replace("-", "") != "utf8" for name in names)


_LINES_ABOVE, _MIN_HEIGHT = 3, 4  # leaves room for the workers' output
_MIN_S, _MAX_S = 2.0, 60.0  # between two lines in a pipe


class Display:
    """Shows snapshots on a terminal as a table, else as short lines; a context manager."""

    def __init__(self, console: Console, summary_follows: bool = False, title: str = "") -> None:
        self._console = console
        self._title, self._plain = title, shows_ascii_only(console)
        self._summary_follows = summary_follows
        self._live = None
        self._table = _Table()
        if is_live(console):
            self._live = Live(self._table, console=console, auto_refresh=False, vertical_overflow="crop")
        self.unfinished = ""  # a temporary line above the table, such as a progress bar
        self._paused = False
        self._recent = Recent()
        self._printed: tuple[str, ...] = ()
        self._printed_at = -math.inf

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        snapshot = self._recent.snapshot
        if self._summary_follows and snapshot is not None:
            self._recent.snapshot = snapshot._replace(reported={})
        if self._live is not None:
            self._draw()
            self._live.stop()
        else:  # A following summary has the values.
            self._print(least_s=math.inf if self._summary_follows else 0.0)

    def show(self, snapshot: Snapshot, draw: bool = True) -> None:
        """Show the state of the job; on a terminal, without ``draw``, only at the next print."""
        self._recent.take(snapshot, time.monotonic())
        if self._summary_follows and all(each.phase.gone for each in snapshot.participants):
            self._recent.snapshot = snapshot._replace(reported={})
        if self._paused:
            return
        if self._live is not None:
            self._draw()
            if draw:
                self._live.refresh()
        else:
            self._print(_MIN_S)

    def _draw(self) -> None:
        size = self._console.size
        above = [self.unfinished[: size.width]] if self.unfinished else []
        height = max(_MIN_HEIGHT, size.height - _LINES_ABOVE - len(above))
        lines = draw(self._recent, size.width, height, self._title, self._plain)
        self._table.text = painted([*(Line("output", text) for text in above), *lines])

    def pause(self) -> bool:
        """Stop showing while a debugger uses the terminal; return whether the display was on."""
        if self._paused:
            return False
        self._paused = True
        if self._live is not None:
            self._live.stop()
        return True

    def _print(self, least_s: float) -> None:
        """Print a line if it changed; for changes of values at most every ``least_s`` seconds."""
        snapshot = self._recent.snapshot
        if snapshot is None:
            return
        key, line = plain_line(self._recent)
        passed = time.monotonic() - self._printed_at
        of_workers = key[:1] != self._printed[:1]
        if of_workers or (key != self._printed and passed >= least_s) or passed >= _MAX_S:
            self._printed, self._printed_at = key, time.monotonic()
            text = f"[{snapshot.seconds:6.1f} s] {line}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Table:
    """The current table; a `Live` redraws it, also below text that is printed later."""

    def __init__(self) -> None:
        self.text = Text()

    def __rich__(self) -> Text:
        return self.text


def is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def summary(result: Result, workers: int) -> dict[str, Any]:
    """Return the reported values, and how the job ended."""
    # A reported value has priority if the scripts ended by themselves.
    of_script = result.reported.get("stopped_by") if result.stopped_by.startswith("end of script") else None
    return {
        **result.reported,
        "workers": workers,
        "joined": result.joined,
        "seconds": round(result.seconds, 3),
        "stopped_by": of_script or result.stopped_by,
        "first_failure": result.first_failure,
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
