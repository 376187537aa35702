"""``platoon doctor``: what is installed, what works, and how to get the rest."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap

import click

from platoon_base.cli.doctor import Check, checks

__all__ = ["command"]

_NAME = 24
_INDENT = 4 + _NAME


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="For programs: a list with an entry for each check.")
def command(as_json: bool) -> None:
    """Print what is installed, which back ends work, and how to get the rest.

    Frameworks are tried one after the other, which takes seconds. One of them is enough.
    """
    if as_json:
        click.echo(json.dumps([check._asdict() for check in checks()], indent=2))
        return
    found = []
    group = ""
    for check in checks():
        if check.group != group:
            group = check.group
            click.echo(click.style(group, bold=True))
        _print(check)
        found.append(check)
    missing = [check for check in found if not check.works]
    text = f"{len(found) - len(missing)} of {len(found)} checks are ok"
    needed = [check.name for check in missing if check.needed]
    if needed:
        text += f"; without {', '.join(needed)} no job runs well: do what stands there first"
    elif missing:
        text += "; what is not is optional: install what your scripts import"
    click.echo(text)


def _print(check: Check) -> None:
    """Print a check in a line, and its remedy in one below; on a terminal both are broken between words."""
    mark = (
        click.style("ok  ", fg="green") if check.works else click.style("no  ", fg="red" if check.needed else "yellow")
    )
    first, *rest = _broken(check.finding)
    click.echo(f"{mark}{check.name:{_NAME}}{first}")
    for line in rest + (_broken(f"-> {check.remedy}") if check.remedy else []):
        click.echo(f"{'':{_INDENT}}{line}")


def _broken(text: str) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    width = max(20, shutil.get_terminal_size().columns - _INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
