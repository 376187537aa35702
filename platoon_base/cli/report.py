"""What a job prints: a live table on a terminal, lines in a pipe, the result."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from platoon_base.checkpoints.files import About
from platoon_base.checkpoints.writer import Tally
from platoon_base.cli.recent import BLOCKS, Recent
from platoon_base.cli.table import Line, cut, draw, plain_line
from platoon_base.cli.worker_output import Failures, name_workers
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.controller.processes import Exit
from platoon_base.devices.discovery import Choice
from platoon_base.hosts import World
from platoon_base.system.output import lost_output
from platoon_base.worker_process.failure import INTERRUPTED

_STYLES = {"title": "bold", "heading": "dim"}  # Styles of whole lines.
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


_LINES_ABOVE, _MIN_HEIGHT = 3, 4  # This leaves room for the workers' output.
_MIN_S, _MAX_S = 2.0, 60.0  # Time between two lines in a pipe.


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
        self.unfinished = ""  # A temporary line above the table, such as a progress bar.
        self._paused = False
        self._recent = Recent()
        self._printed: tuple[str, ...] = ()
        self._printed_at = -math.inf

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._summary_follows:
            self._recent.snapshot = self._recent.snapshot._replace(reported={})
        if self._live is not None:
            if self._recent.taken:
                self._draw()
            self._live.stop()
        else:  # A following summary has the values.
            self._print(least_s=math.inf if self._summary_follows else 0.0)

    def show(self, snapshot: Snapshot, draw: bool = True) -> None:
        """Show the state of the job; on a terminal, without ``draw``, only at the next print."""
        self._recent.take(snapshot, time.monotonic())
        if self._summary_follows and not snapshot.here:
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
        if not self._recent.taken:
            return
        key, line = plain_line(self._recent)
        passed = time.monotonic() - self._printed_at
        of_workers = key[:1] != self._printed[:1]
        if of_workers or (key != self._printed and passed >= least_s) or passed >= _MAX_S:
            self._printed, self._printed_at = key, time.monotonic()
            text = f"[{self._recent.snapshot.seconds:6.1f} s] {line}"
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


_VALUE_CHARACTERS = 500
_KERNEL = "JPY_PARENT_PID"  # Set in kernels; a `!command` has a terminal.


def open_console(stderr: bool = False, plain: bool = False) -> Console:
    """Return a console without markup; with ``plain``, or in a notebook, it redraws nothing."""
    terminal = False if plain or _KERNEL in os.environ else None
    return Console(stderr=stderr, force_terminal=terminal, markup=False, emoji=False, highlight=False)


def log_to(console: Console) -> None:
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


def print_line(console: Console, text: str | Text, **options: Any) -> None:
    """Print a line of any length; on a terminal, break it between words."""
    console.print(text, soft_wrap=not is_live(console), **options)


def opening(chosen: Choice, center: str, folder: Path, world: World | None = None) -> str:
    """Return the first line of output: the number of workers, their devices, and the reason."""
    devices, reason = chosen
    if world is not None:
        shares = ", ".join(f"{count} on {name}" for count, name in zip(world.workers, world.names))
        return f"{world.size} workers on {world.hosts} hosts ({shares}), logs in {folder}"
    where = "the CPU" if set(devices) == {"cpu"} else " ".join(devices)
    why = f" ({reason})" if reason else ""
    memory = ", center in GPU memory unless a warning follows" if center == "device" else ""
    return f"{len(devices)} worker{'s' * (len(devices) > 1)} on {where}{why}{memory}, logs in {folder}"


def crowded(workers: int, cores: int) -> str:
    they = f"{workers} workers share {cores} core{'s' * (cores > 1)}"
    return f"{they} (CPU affinity, or the quota of the control group), so they are no faster than {cores} would be"


def resumed_from(kept: Path, found: tuple[Path, About] | None, workers: int) -> str:
    if found is None:
        return f"no checkpoint in {kept} yet: the job starts from the beginning"
    path, about = found
    if not about.parameters:
        return f"resumed from {path}, which has no parameters, only the values that the workers kept"
    positions = [about.position(rank, workers) for rank in range(workers)]
    epoch, batches = min(position.epoch for position in positions), sum(position.steps for position in positions)
    text = f"resumed from {path}: epoch {epoch}, {batches} mini-batches done"
    if workers != about.size:
        text += f" by {about.size} workers; now {workers}, which restart that epoch"
    return text


def as_text(told: str) -> Text:
    text = Text(told)
    text.stylize("bold red", 0, len(told.partition("\n")[0]))
    return text


def print_result(
    console: Console, result: Result, workers: int, folder: Path, failures: Failures | None = None
) -> None:
    """Print how a job ended; ``failures`` has returned the failures shown so far."""
    failed = [ended for ended in result.exits if ended.status]
    told = failures or Failures(folder, workers)
    causes = failed if not result.interrupted else [] if result.failed is None else [result.failed]
    for text in told.new(causes, result.interrupted, last=True):
        print_line(console, as_text(text))
    by_end: dict[str, list[Exit]] = {}
    for ended in failed:
        by_end.setdefault(_end_of(ended, result.interrupted), []).append(ended)
    for end, group in by_end.items():
        log = group[0].log_file if len(group) == 1 else folder
        print_line(console, f"{name_workers(ended.rank for ended in group)}: {end}{f', see {log}' if log else ''}")
    table = Table(box=None, show_header=False, pad_edge=False)
    values = summary(result, workers)
    if values["first_failure"] == values["stopped_by"]:
        del values["first_failure"]
    for name, value in values.items():
        if value not in ([], "") and (name, value) != ("joined", 0):
            table.add_row(name, f"{value:.6g}" if isinstance(value, float) else cut(str(value), _VALUE_CHARACTERS))
    console.print(table)
    if result.shared_nothing:
        print_line(open_console(stderr=True), _trained_separately(result.shared_nothing, workers), style="bold red")
    if result.lost_leader:
        print_line(console, f"WARNING: {result.lost_leader}", style="bold red")
    if result.checkpoints is not None and result.checkpoints.unsaved:
        text = f"WARNING: the end of this job is in no checkpoint: {result.checkpoints.unsaved}"
        print_line(console, text, style="bold red")


def _end_of(ended: Exit, interrupted: bool) -> str:
    """Return how a worker ended; in an interrupted job it may have been killed."""
    kind = INTERRUPTED if ended.failure is None else ended.failure.kind
    if ended.why:
        return ended.why if kind == INTERRUPTED else f"failed ({kind}), and was {ended.why}"
    by_signal = ended.status in (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
    if not interrupted or not (by_signal or (ended.failure is not None and kind == INTERRUPTED)):
        return str(ended)
    return "interrupted" if kind == INTERRUPTED else f"failed ({kind}), and was interrupted"


def warn_of_lost_output(folder: Path) -> None:
    """Print a note to standard error if a part of the output could not be written."""
    reason = lost_output()
    if reason:
        text = f"platoon: a part of this output could not be written ({reason}); the workers' output is in {folder}"
        click.echo(text, err=True)


def _trained_separately(ranks: Sequence[int], workers: int) -> str:
    if len(ranks) == workers:
        what = f"the {workers} workers shared and averaged nothing: these were {workers} separate runs of the script"
    else:
        named = ", ".join(map(str, ranks))
        what = f"worker{'s' * (len(ranks) > 1)} {named} shared and averaged nothing with the others"
    return (
        f"WARNING: {what}, each with its own model. To train one model, call prepare(...) of the "
        "plugin for your framework, or connect() with init_shared_params and sync_params. "
        "(platoon cannot see what a framework averages by itself)"
    )
