"""``platoon jobs``: list the running jobs."""

from __future__ import annotations

import json

import click

from platoon_base.cli.job_list import facts, listing
from platoon_base.job.files import running

__all__ = ["command"]


@click.command("jobs")
@click.option("--json", "as_json", is_flag=True, help="For programs: a list with an entry for each job.")
def command(as_json: bool) -> None:
    """List this user's running jobs: script, age, workers, devices, and the folder of their logs.

    Jobs of another PLATOON_NAMESPACE or TMPDIR are not seen.
    """
    found = [facts(files) for files in running()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for line in listing(found):
        click.echo(line)
    if not found:
        click.echo("no job of yours is running", err=True)
