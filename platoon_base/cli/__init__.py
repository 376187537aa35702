"""The command ``platoon``: its subcommands, what they print, and what they look up before they start a job."""

from platoon_base.cli.commands import main

__all__ = ["main"]
