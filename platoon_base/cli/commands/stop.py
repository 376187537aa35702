"""``platoon stop``: end a running job, from any terminal."""

from __future__ import annotations

import contextlib
import math
import os
import sys

import click

from platoon_base.cli.commands.arguments import job_argument
from platoon_base.cli.commands.jobs import program_of
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.job.files import JobFiles, running
from platoon_base.job.observing import Observer, kill
from platoon_base.system.process import working_folder
from platoon_base.timeouts import timeout


def _seconds(context: click.Context, parameter: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not 0 <= seconds < math.inf:  # This refuses NaN too.
        raise click.BadParameter(f"got {seconds:g}: it must be a number of seconds, 0 or more")
    return seconds


@click.command("stop")
@click.option(
    "--grace",
    type=float,
    metavar="S",
    callback=_seconds,
    help="Seconds that the workers have to save their state.  [as launched]",
)
@click.option(
    "--wait",
    "patience_s",
    type=float,
    default=120.0,
    show_default=True,
    metavar="S",
    callback=_seconds,
    help="Wait at most S seconds for the end of the job.",
)
@click.option("--kill", "by_force", is_flag=True, help="Kill launcher and workers, for a job whose launcher hangs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Without a terminal there is no question.")
@job_argument
def command(grace: float | None, patience_s: float, by_force: bool, yes: bool, job: str) -> None:
    """Stop JOB in order, as Ctrl-C does: workers may save, and the last checkpoint is written.

    JOB is a name listed by `platoon jobs`, or its beginning. The only job that was launched from
    this folder needs no name. On a terminal the command asks first, also for the only job of
    another folder; --yes answers. A second `platoon stop` kills the workers immediately, as a
    second Ctrl-C does. The exit status is 0 once the job has ended.
    """
    files = JobFiles.find(job) if job else _only_job(yes)
    name = _name(files)
    where = "" if job or _is_of_here(files) else f" was launched from {_folder(files)}"
    question = f"{name}{where}: stop it?" if where else f"stop {name}?"
    if not yes and _can_ask() and not click.confirm(question):
        click.echo(f"{name} continues", err=True)
        sys.exit(1)
    if by_force:
        kill(files)
        click.echo(f"killed {name}")
        return
    with Observer(files) as observer:
        try:
            observer.end(grace)
        except CollectiveTimeoutError as exc:
            text = f"the launcher of {name} did not answer within {timeout('answer'):g} s: try again, or"
            raise ConfigurationError(f"{text} kill it with `platoon stop --kill {files.job}`") from exc
        except WorkerLostError:
            pass  # It has just ended.
        click.echo(f"stopping {name}")
        with contextlib.suppress(KeyboardInterrupt):
            if observer.wait(patience_s):
                click.echo(f"{name} has ended")
                return
    click.echo(f"{name} is still running: a second `platoon stop` kills its workers, --kill its launcher too", err=True)
    sys.exit(1)


def _name(files: JobFiles) -> str:
    return f"job {files.job} ({program_of(files)})"


def _can_ask() -> bool:
    """Return whether there is a terminal to ask on; a background process would be stopped."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # No job control: it is not this session's terminal.
        return True


def _is_of_here(files: JobFiles) -> bool:
    here = working_folder()
    return bool(here) and files.origin.working_folder == here


def _only_job(yes: bool) -> JobFiles:
    """Return the only job launched from this folder, or the only one of all if the user agrees."""
    jobs = running()
    launched_here = [files for files in jobs if _is_of_here(files)]
    if len(launched_here) == 1:
        return launched_here[0]
    if len(jobs) == 1 and (yes or _can_ask()):
        return jobs[0]
    if not jobs:
        return JobFiles.find()  # This raises the error.
    shown = launched_here or jobs
    listed = ", ".join(f"{files.job} ({program_of(files)}, from {_folder(files)})" for files in shown)
    which = "several jobs were" if launched_here else "no job of yours was"
    raise ConfigurationError(f"{which} launched from this folder: name the job to stop, one of {listed}")


def _folder(files: JobFiles) -> str:
    return files.origin.working_folder or "an unknown folder"
