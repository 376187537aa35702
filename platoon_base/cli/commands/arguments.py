"""How the commands read words that they have in common."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from platoon_base.errors import ConfigurationError
from platoon_base.job.files import running
from platoon_base.timeouts import ROWS, change, require_coupled
from platoon_base.worker_process.program import Program

_F = Callable[..., Any]
_GIVEN = f"{__name__}.timeouts"  # In a context's ``meta``: the names after ``--timeout``.
SCRIPT = {"allow_interspersed_args": False}  # The words after the script are its own.


def _jobs(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    return [files.job for files in running() if files.job.startswith(begin)]


job_argument = click.argument("job", default="", shell_complete=_jobs)


# Eager: the other options of a command may depend on it.
TIMEOUT: dict[str, Any] = {
    "multiple": True,
    "metavar": "NAME=SECONDS",
    "is_eager": True,
    "help": "Change a duration of the job, such as wait=900; docs/timeouts.md has the names.  [PLATOON_TIMEOUTS]",
}


def _change_timeouts(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> None:
    if texts and not context.resilient_parsing:
        change(os.environ, texts)
        if context.get_parameter_source("timeout") is ParameterSource.COMMANDLINE:
            context.meta[_GIVEN] = {text.partition("=")[0].strip() for text in texts}


def add_options(command: _F, options: Iterable[_F]) -> _F:
    """Add options of click to a command, in this order."""
    for option in reversed([*options]):
        command = option(command)
    return command


def timeout_option(command: _F) -> _F:
    """Add ``--timeout``, and check the couplings after all options."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        require_coupled(os.environ)
        return command(*args, **options)

    return click.option("--timeout", expose_value=False, callback=_change_timeouts, **TIMEOUT)(checked)


def timeout_alias(option: str, name: str, text: str) -> Callable[[_F], _F]:
    """Return an option of its own for one of the timeouts."""

    def put(context: click.Context, parameter: click.Parameter, seconds: float | None) -> None:
        if seconds is None or context.resilient_parsing:
            return
        in_file = context.get_parameter_source(str(parameter.name)) is ParameterSource.DEFAULT_MAP
        # ``--timeout`` on the command line has priority over the file of ``--config``.
        if not (in_file and name in context.meta.get(_GIVEN, ())):
            change(os.environ, [f"{name}={seconds:.12g}"], f"{option}, the timeout")

    shown = f"{text}  [{ROWS[name].default:g}]"
    return click.option(option, type=float, metavar="S", expose_value=False, callback=put, help=shown)


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
