"""``platoon run``: run a script as one process, with the repairs that it may need."""

from __future__ import annotations

import sys

import click

from platoon_base.cli.commands.arguments import SCRIPT, program_and_args
from platoon_base.worker_process import child


@click.command("run", context_settings={**SCRIPT, "ignore_unknown_options": True})  # -m belongs to the program
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="{SCRIPT | - | -m MODULE} [ARGS]...")
def command(words: tuple[str, ...]) -> None:
    """Run SCRIPT as python would, with the repairs that Theano and its contemporaries need.

    It is for scripts of platoon_base.platoon_api that are started by hand and import Theano before
    this package.
    """
    program, args = program_and_args(words)
    sys.argv = ["platoon-run", *program.argv, *args]
    child.main()
