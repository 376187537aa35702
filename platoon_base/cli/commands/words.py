"""How the commands read the words of a command line that they have in common."""

from __future__ import annotations

from pathlib import Path

import click

from platoon_base.errors import ConfigurationError

__all__ = ["SCRIPT", "require_folder_of", "require_module"]

SCRIPT = {"allow_interspersed_args": False}  # what follows the script is the script's


def require_folder_of(summary_file: Path | None) -> None:
    """Raise `ConfigurationError` if the summary would have no folder."""
    if summary_file is not None and not summary_file.resolve().parent.is_dir():
        raise ConfigurationError(f"--summary {summary_file}: there is no folder {summary_file.parent}; make it first")


def require_module(words: tuple[str, ...]) -> None:
    """Raise `click.UsageError` if ``-m`` stands alone."""
    if words == ("-m",):
        raise click.UsageError("-m needs the dotted name of a module")
