"""``platoon jobs``: list the running jobs."""

from __future__ import annotations

import click

from platoon_base.job.files import running

__all__ = ["command"]


@click.command("jobs")
def command() -> None:
    """List this user's running jobs."""
    for files in running():
        click.echo(f"{files.job}  {files.size} workers  {files.folder}")
