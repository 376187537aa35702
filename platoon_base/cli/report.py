"""The lines that `platoon launch` prints before and after the display of the running job."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from platoon_base.checkpoints.files import About
from platoon_base.cli.display import is_live, summary
from platoon_base.cli.failures import Failures, name_workers
from platoon_base.cli.table import cut
from platoon_base.controller.outcome import Result
from platoon_base.controller.processes import Exit
from platoon_base.devices.discovery import Choice
from platoon_base.hosts.world import World
from platoon_base.system.output import lost_output
from platoon_base.worker_process.failure import INTERRUPTED

__all__ = [
    "as_text",
    "log_to",
    "open_console",
    "opening",
    "print_line",
    "print_result",
    "resumed_from",
    "warn_of_lost_output",
]

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
