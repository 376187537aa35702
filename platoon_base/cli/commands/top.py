"""``platoon top``: the live table of a running job, in another terminal."""

from __future__ import annotations

import time

import click

from platoon_base.cli import report
from platoon_base.cli.commands.arguments import job_argument
from platoon_base.cli.commands.jobs import program_of
from platoon_base.cli.recent import Recent
from platoon_base.cli.report import Display, shows_ascii_only
from platoon_base.cli.table import table
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import CollectiveTimeoutError, WorkerLostError
from platoon_base.job.files import JobFiles
from platoon_base.job.observing import Observer


@click.command("top")
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between updates.",
)
@job_argument
def command(once: bool, every: float, job: str) -> None:
    """Show JOB live, as the terminal that started it does, until it ends.

    JOB is a name listed by `platoon jobs`, or its beginning; the only running job needs no name.
    Ctrl-C ends the view, not the job. In a pipe there is a line for each change.
    """
    files = JobFiles.find(job)
    console = report.open_console()
    report.print_line(
        console, f"job {files.job}: {program_of(files)}, logs in {files.origin.log_folder or 'no folder'}"
    )
    title = program_of(files).partition(" ")[0]
    with Observer(files) as observer:
        if once:
            recent = Recent()
            recent.take(observer.poll(), time.monotonic())
            for line in table(recent, console.width, 10_000, title, shows_ascii_only(console)):
                report.print_line(console, line)
            return
        with StopSignals() as signals, Display(console, title=title) as display:
            while not signals.take(every):
                try:
                    display.show(observer.poll())
                except CollectiveTimeoutError as exc:
                    report.print_line(console, f"{exc} (if the job hangs, `platoon stop --kill {files.job}` ends it)")
                except WorkerLostError:
                    report.print_line(console, f"job {files.job} has ended")
                    return
