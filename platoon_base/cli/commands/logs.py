"""``platoon logs``: what the workers of a running job write."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import click

from platoon_base.cli.commands.arguments import job_argument
from platoon_base.cli.worker_output import CHUNK_BYTES, LogFollower
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import World
from platoon_base.job.files import JobFiles
from platoon_base.job.starting import log_file
from platoon_base.system.job_paths import pattern_of
from platoon_base.system.own_files import open_regular
from platoon_base.timeouts import POLL_S

_NAME = re.compile(pattern_of("log"))


def ranks_in(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match is not None)


def begin_of_last_lines(file: BinaryIO, count: int) -> int:
    """Return the offset of the last ``count`` lines of a file; 0 means all."""
    end = file.seek(0, os.SEEK_END)
    if not (count and end):
        return 0
    with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
        position = end - data[end - 1 : end].count(b"\n")  # No line starts after the last line's end.
        while count and position >= 0:
            position, count = data.rfind(b"\n", 0, position), count - 1
    return position + 1


class LogView:
    """Writes the last ``lines`` (0: all) of logs, and then new ones; without a rank, all logs."""

    def __init__(self, folder: Path, rank: int | None, lines: int, stream: BinaryIO) -> None:
        self._folder = folder
        self._rank = rank
        self._lines = lines
        self._stream = stream
        self._logs: dict[int, LogFollower] = {}

    def show(self, last: bool = False) -> None:
        """Write new lines; with ``last`` also incomplete ones."""
        for rank in ranks_in(self._folder) if self._rank is None else [self._rank]:
            log = self._log(rank)
            while log is not None and self._show(rank, log, last):
                pass
        self._stream.flush()

    def _log(self, rank: int) -> LogFollower | None:
        """Return the follower of a log, at first before its last lines; None without a log."""
        if rank not in self._logs:
            path = log_file(self._folder, rank)
            try:
                with open_regular(path) as file:
                    self._logs[rank] = LogFollower(path, begin_of_last_lines(file, self._lines))
            except OSError:
                return None
        return self._logs[rank]

    def _show(self, rank: int, log: LogFollower, last: bool) -> bool:
        """Write a part of the new lines of one log; return whether there is more."""
        data = log.read()
        more = len(data) == CHUNK_BYTES
        if self._rank is not None:
            self._stream.write(data)
            return more
        lines = log.lines(data)
        if (last and not more) or len(log.rest) > CHUNK_BYTES:
            lines += log.flush()
        self._stream.write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))
        return more


def _elsewhere(world: World, there: Collection[int]) -> list[str]:
    found = []
    for host in range(world.hosts if world.several else 0):
        away = [rank for rank in world.ranks_on(host) if rank not in there]
        if host != world.host and away:
            ranks, name = f"rank{'s' * (len(away) > 1)} {', '.join(map(str, away))}", world.names[host]
            found.append(f"the logs of {ranks} are on host {host} ({name}): run `platoon logs` there")
    return found


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job ends.")
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="R",
    help="Show the log of this worker only, without ranks before the lines.  [all]",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Start N lines before the end; 0 shows the whole log.",
)
@job_argument
def command(follow: bool, rank: int | None, lines: int, job: str) -> None:
    """Show the logs of JOB: of all workers, with their ranks before the lines, or of one.

    JOB is a name listed by `platoon jobs`, or its beginning; the only running job needs no name.
    For a job that has ended, JOB is the folder of its logs.
    """
    is_folder = bool(job) and Path(job).is_dir() and bool(ranks_in(Path(job)))
    files = None if is_folder else JobFiles.find(job)
    if files is not None and not files.origin.log_folder:
        raise ConfigurationError(f"job {files.job} has no folder of logs: its workers write to their terminals")
    folder = Path(job) if files is None else Path(files.origin.log_folder)
    there = ranks_in(folder)
    elsewhere = [] if files is None else _elsewhere(files.world, there)
    if rank is not None and rank not in there:
        known = ", ".join(map(str, there)) or "none yet"
        text = "; ".join([f"{folder} has logs of ranks {known}", *elsewhere])
        raise ConfigurationError(f"got --rank {rank}: {text}")
    if rank is None:
        for text in elsewhere:
            click.echo(text, err=True)
    view = LogView(folder, rank, lines, sys.stdout.buffer)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the usual end.
        view.show(last=not follow or files is None)
        while follow and files is not None:
            ended = not files.alive
            view.show(last=ended)
            if ended:
                return
            time.sleep(POLL_S)
