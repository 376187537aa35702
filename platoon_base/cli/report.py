"""The lines that `platoon launch` prints before, beside and after the display of the running job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from platoon_base.checkpoints.files import About
from platoon_base.cli.display import cut, summary
from platoon_base.cli.log_folder import log_file, tail
from platoon_base.cli.log_lines import MarkedLines
from platoon_base.controller.controller import Result
from platoon_base.devices.discovery import Choice

__all__ = ["log_to", "open_console", "opening", "print_line", "print_result", "print_warnings", "resumed_from"]

_VALUE_CHARACTERS = 500


def open_console(stderr: bool = False) -> Console:
    """Return a console that prints texts as they are: brackets in one are no commands."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def log_to(console: Console) -> None:
    """Show the warnings of this process's log on a console."""
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


def print_line(console: Console, text: str, **options: Any) -> None:
    """Print a line, however long."""
    console.print(text, soft_wrap=True, **options)


def opening(chosen: Choice, center: str, folder: Path) -> str:
    """Return the first line of output: how many workers, where, and why there."""
    devices, reason = chosen
    where = "the CPU" if set(devices) == {"cpu"} else " ".join(devices)
    why = f" ({reason})" if reason else ""
    memory = ", center in GPU memory" if center == "device" else ""
    return f"{len(devices)} worker{'s' * (len(devices) > 1)} on {where}{why}{memory}, logs in {folder}"


def resumed_from(kept: Path, found: tuple[Path, About] | None, workers: int) -> str:
    """Return the line of output about checkpoints: what is resumed, or where they will be."""
    if found is None:
        return f"checkpoints in {kept}, none there yet: this job begins anew"
    path, about = found
    positions = [about.position(rank, workers) for rank in range(workers)]
    epoch, batches = min(position.epoch for position in positions), sum(position.steps for position in positions)
    text = f"resumed from {path}: epoch {epoch}, {batches} mini-batches done"
    if workers != about.size:
        text += f" by {about.size} workers; now {workers}, who begin that epoch anew"
    return text


def print_warnings(console: Console, warned: MarkedLines) -> None:
    """Print the warnings that workers have logged since the last call."""
    for rank, text in warned.new():
        print_line(console, f"WARNING, worker {rank}: {text}", style="bold red")


def print_result(console: Console, result: Result, workers: int, folder: Path) -> None:
    """Print how a job ended: the workers that failed, the summary, and what is wrong with the result."""
    for ended in result.exits:
        if ended.status and result.interrupted:
            print_line(console, f"worker {ended.rank}: {ended}")
        elif ended.status:
            path = log_file(folder, ended.rank)
            print_line(console, f"worker {ended.rank}: {ended}; the end of {path}:")
            print_line(console, tail(path))
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in summary(result, workers).items():
        if value != []:
            table.add_row(name, f"{value:.6g}" if isinstance(value, float) else cut(str(value), _VALUE_CHARACTERS))
    console.print(table)
    if result.shared_nothing:
        print_line(open_console(stderr=True), _trained_alone(result.shared_nothing, workers), style="bold red")
    if result.checkpoints is not None and result.checkpoints.unsaved:
        text = f"WARNING: the end of this job is in no checkpoint: {result.checkpoints.unsaved}"
        print_line(console, text, style="bold red")


def _trained_alone(ranks: Sequence[int], workers: int) -> str:
    """Say that workers trained models of their own."""
    if len(ranks) == workers:
        what = f"the {workers} workers shared and averaged nothing: these were {workers} separate runs of the script"
    else:
        named = ", ".join(map(str, ranks))
        what = f"worker{'s' * (len(ranks) > 1)} {named} shared and averaged nothing with the others"
    return (
        f"WARNING: {what}, each with a model of its own. A plugin's sync (README), or connect() with "
        "init_shared_params and sync_params, makes them train one model"
    )
