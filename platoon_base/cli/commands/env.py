"""``platoon env``: versions, limits and settings, for a bug report."""

from __future__ import annotations

import json

import click

from platoon_base.cli.environment_report import environment_report

__all__ = ["command"]


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Print versions, machine, limits, devices and relevant variables, for a bug report.

    Only variables about jobs, frameworks and threads are shown. Values of variables whose names
    suggest keys, tokens or passwords are hidden. Read the output before you publish it.
    """
    report = environment_report()
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for heading, values in report.items():
        click.echo(heading)
        for name, value in values.items():
            click.echo(f"  {name:{max(map(len, values))}}  {value}".rstrip())
