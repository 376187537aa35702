"""``platoon doctor``: what is installed, what works, and how to get the rest."""

from __future__ import annotations

import click

from platoon_base.cli.doctor import checks

__all__ = ["command"]


@click.command("doctor")
def command() -> None:
    """Print what is installed, which back ends work, and how to get the rest."""
    for check in checks():
        mark = click.style("ok  ", fg="green") if check.works else click.style("no  ", fg="yellow")
        click.echo(f"{mark}{check.name:24}{check.finding}")
        if check.remedy:
            click.echo(f"{'':28}-> {check.remedy}")
