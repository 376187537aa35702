"""``platoon clean``: remove what dead jobs left behind."""

from __future__ import annotations

import sys

import click

from platoon_base.job.files import leftovers, remove


@click.command("clean")
@click.option("--dry-run", is_flag=True, help="Only list.")
def command(dry_run: bool) -> None:
    """List and remove what this user's dead jobs left behind. Running jobs are not touched."""
    found = leftovers()
    stays = False
    for leftover in found:
        done = "would remove" if dry_run else "removed" if remove(leftover) else "cannot remove"
        stays |= done == "cannot remove"
        click.echo(f"{done}  {leftover.size_bytes:>12,} bytes  {leftover.path}")
    if not found:
        click.echo("nothing left behind")
    sys.exit(int(stays))
