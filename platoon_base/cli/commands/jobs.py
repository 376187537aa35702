"""``platoon jobs``: list the running jobs, or show what has happened in one."""

from __future__ import annotations

import json
from pathlib import Path

import click

from platoon_base.cli.job_list import facts, listing
from platoon_base.cli.story_file import as_json, read_story
from platoon_base.coordination.story import Entry
from platoon_base.job.files import JobFiles, running
from platoon_base.job.observing import Observer
from platoon_base.system.job_paths import path_of

__all__ = ["command"]


@click.command("jobs")
@click.option(
    "--json", "as_json_", is_flag=True, help="As JSON: a list with an entry for each job, or for each change."
)
@click.option(
    "--story",
    metavar="JOB",
    help="Show the event log of JOB: when workers, hosts and couriers changed, and why. For a "
    "job that has ended, name the folder of its logs.",
)
def command(as_json_: bool, story: str | None) -> None:
    """List this user's running jobs: script, age, workers, devices, and the folder of their logs.

    Jobs with another PLATOON_NAMESPACE or TMPDIR are not listed.
    """
    if story is not None:
        entries = _story_of(story)
        click.echo(as_json(entries) if as_json_ else "\n".join(entry.line for entry in entries))
        return
    found = [facts(files) for files in running()]
    if as_json_:
        click.echo(json.dumps(found, indent=2))
        return
    for line in listing(found):
        click.echo(line)
    if not found:
        click.echo("you have no running job", err=True)


def _story_of(job: str) -> list[Entry]:
    """Return the event log of a running job, or of one that has ended, from its folder."""
    if job and path_of(job, "story").is_file():
        return read_story(Path(job))
    with Observer(JobFiles.find(job)) as observer:
        return observer.story()
