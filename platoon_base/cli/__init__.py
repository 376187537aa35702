"""The command ``platoon``: subcommands in `commands`, their output, checks before a job starts."""

from platoon_base.cli.commands import main

__all__ = ["main"]
