"""``platoon doctor``: what is installed, what works, and how to install the rest."""

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
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list with an entry for each check.")
@click.option("--all", "every", is_flag=True, help="Also show how to install everything that is missing.")
def command(as_json: bool, every: bool) -> None:
    """Print what is installed, which back ends work, and how to install the rest.

    Each framework is imported, which takes seconds. One working framework is enough.
    """
    if as_json:
        click.echo(json.dumps([check._asdict() for check in checks()], indent=2))
        return
    found = []
    group = ""
    for check in checks():
        found.append(check)
        if _is_absent(check, found) and not every:
            continue
        if check.group != group:
            group = check.group
            click.echo(click.style(group, bold=True))
        _print(check)
    absent = [check for check in found if _is_absent(check, found)]
    for check in [each for each in found if each.absent and each not in absent and not every]:
        # A requirement of a framework that was found later.
        _print(check)
    if absent and not every:
        names = ", ".join(check.name for check in absent)
        for line in _broken(f"not installed: {names} (platoon doctor --all shows how to install them)"):
            click.echo(line)
    shown = [check for check in found if every or check not in absent]
    missing = [check for check in shown if not check.works]
    text = f"{len(shown) - len(missing)} of {len(shown)} checks are ok"
    needed = [check.name for check in missing if check.needed]
    if needed:
        text += f"; jobs need {', '.join(needed)}: repair that first"
    elif missing:
        text += "; the others are optional: install what your scripts import"
    frameworks = [check for check in found if check.group == "frameworks" and check.name != "mpi4py"]
    if frameworks and not any(check.works for check in frameworks):
        text += "; no framework works, so only loops on NumPy arrays can be trained"
    click.echo(text)


def _is_absent(check: Check, found: list[Check]) -> bool:
    """Return whether a missing package is not needed by anything found."""
    framework = next((other for other in found if other.name == check.goes_with), None)
    return check.absent and not check.needed and (framework is None or framework.absent)


def _print(check: Check) -> None:
    """Print a check and, below, its remedy; on a terminal break them between words."""
    mark = (
        click.style("ok  ", fg="green") if check.works else click.style("no  ", fg="red" if check.needed else "yellow")
    )
    first, *rest = _broken(check.finding)
    click.echo(f"{mark}{check.name:{_NAME - 1}} {first}")
    for line in rest + (_broken(f"-> {check.remedy}") if check.remedy else []):
        click.echo(f"{'':{_INDENT}}{line}")


def _broken(text: str) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    width = max(20, shutil.get_terminal_size().columns - _INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
