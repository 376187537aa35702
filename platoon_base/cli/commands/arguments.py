"""How the commands read words that they have in common."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from platoon_base.errors import ConfigurationError
from platoon_base.job.files import running
from platoon_base.worker_process.program import Program

__all__ = ["SCRIPT", "hint_of_misplaced", "job_argument", "program_and_args", "result_file"]

SCRIPT = {"allow_interspersed_args": False}  # The words after the script are its own.


def _jobs(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    return [files.job for files in running() if files.job.startswith(begin)]


job_argument = click.argument("job", default="", shell_complete=_jobs)


def result_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Raise `ConfigurationError` if the file of an option could not be written at the end."""
    option = max(parameter.opts, key=len)
    if path is None or context.resilient_parsing:
        return path
    if not path.resolve().parent.is_dir():
        raise ConfigurationError(f"{option} {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise ConfigurationError(f"{option} {path}: this is a folder; name a file")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise ConfigurationError(f"{option} {path}: no permission to write there; name another file")
    return path


def program_and_args(words: Sequence[str]) -> tuple[Program, list[str]]:
    """Split words into an existing program and its arguments; copies a script on standard input."""
    if tuple(words) == ("-m",):
        raise click.UsageError("-m needs the dotted name of a module")
    if words[0] == "-":
        copy = click.get_current_context().with_resource(_typed())
        words = ["-", copy, *words[1:]]
    program, args = Program.of(words)
    program.require()
    return program, args


def hint_of_misplaced(context: click.Context, program: Program, args: Sequence[str]) -> str:
    """Return a hint if options of this command follow a script without such options, or ''."""
    known = {name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    found = [word.partition("=")[0] for word in args if word.startswith("-")]
    texts = []
    for path in program.files():
        with contextlib.suppress(OSError):
            texts.append(path.read_text(errors="replace"))
    text = "\n".join(texts)
    names = [name for name in dict.fromkeys(found) if name in known and not _mentions(text, name)]
    if not names:
        return ""
    listed, several = " and ".join(names), len(names) > 1
    if several:
        what = f"{listed} stand behind {program.shown}, so they are passed to the script. Options"
    else:
        what = f"{listed} stands behind {program.shown}, so it is passed to the script. An option"
    return f"{what} of {context.command_path} must stand before it"


def _mentions(text: str, option: str) -> bool:
    """Return whether a script seems to have an option, perhaps by a variable's name."""
    if not option.startswith("--"):
        return re.search(rf"""['"]{option}['"]""", text) is not None
    return re.search(rf"\b{option[2:].replace('-', '[-_]')}\b", text) is not None


@contextlib.contextmanager
def _typed() -> Iterator[str]:
    """Copy standard input to a file, for all workers to run."""
    text = sys.stdin.buffer.read()
    descriptor, path = tempfile.mkstemp(prefix="platoon-stdin-", suffix=".py")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
