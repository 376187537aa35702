"""The command ``platoon``: its subcommands, its output, and the checks before a job is started."""

from platoon_base.cli.commands import main

__all__ = ["main"]
