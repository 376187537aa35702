"""``platoon logs``: what the workers of a running job write."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Collection
from pathlib import Path

import click

from platoon_base.cli.commands.arguments import job_argument
from platoon_base.cli.log_view import LogView, ranks_in
from platoon_base.errors import ConfigurationError
from platoon_base.hosts.world import World
from platoon_base.job.files import JobFiles
from platoon_base.timeouts import POLL_S

__all__ = ["command"]


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
    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        view.show(last=not follow or files is None)
        while follow and files is not None:
            ended = not files.alive
            view.show(last=ended)
            if ended:
                return
            time.sleep(POLL_S)
