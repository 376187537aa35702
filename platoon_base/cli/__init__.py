"""The command ``platoon``: its subcommands, its output, and the checks before a job is started.

`commands` has the subcommands; `launcher` starts a job, `display` and `report` show it.
"""

from platoon_base.cli.commands import main

__all__ = ["main"]
