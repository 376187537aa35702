"""The ``platoon`` command: one module for each subcommand, imported when it is used.

This is the only place that prints and exits.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator

import click

from platoon_base import __version__
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.system.limits import limit_text
from platoon_base.system.output import lenient_output, lost_output, output_error, watch_output
from platoon_base.system.process import default_sigchld, working_folder
from platoon_base.system.text import did_you_mean

__all__ = ["SUBCOMMANDS", "main", "spread_devices"]

# The module of each name has its `command`; the texts are for the overview.
SUBCOMMANDS = {
    "clean": "Remove what this user's dead jobs left behind.",
    "doctor": "Print what is installed and works, and how to install the rest.",
    "env": "Print versions, limits and settings for a bug report.",
    "export": "Write the parameters in a checkpoint as safetensors.",
    "jobs": "List this user's running jobs.",
    "join": "Add one more worker to a running job.",
    "launch": "Run a script as N workers.",
    "logs": "Show the output of the workers of a running job.",
    "run": "Run a script as one process, with the repairs it may need.",
    "stop": "Stop a running job in order, from any terminal.",
    "top": "Show a running job live, from any terminal.",
    "tune": "Compare the methods to train a script with.",
}


class _Overview(click.Group):
    """A group that imports only the given subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, known, rest = super().resolve_command(ctx, args)
        except click.UsageError as exc:
            if "Did you mean" in exc.format_message():  # Older releases of click suggest nothing.
                raise
            raise click.UsageError(f"{exc.message}{did_you_mean(args[0], SUBCOMMANDS)}", ctx) from exc
        if known is None:
            return name, None, rest
        if not sys.platform.startswith("linux"):
            raise ConfigurationError(
                f"jobs run only on Linux, and this is {sys.platform}. Run the script as one "
                "process with python SCRIPT, or use platoon in a container or in WSL 2"
            )
        return name, importlib.import_module(f"{__name__}.{known.name}").command, rest


@click.group(cls=_Overview, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="platoon")
def commands() -> None:
    """Data parallelism for Keras, Lasagne, Blocks and other loops: run one script as N workers.

    \b
    Examples:
      platoon launch -n 2 train.py    train one model with two workers
      platoon doctor                  list what is installed and how to get the rest
      platoon tune -n 2 train.py      compare methods on this script
    """  # noqa: D301


for _name, _line in SUBCOMMANDS.items():
    commands.add_command(click.Command(_name, short_help=_line))


def spread_devices(argv: list[str]) -> list[str]:
    """Turn ``-D cuda0 cuda1 script.py`` into ``-D cuda0 -D cuda1 script.py`` for click."""
    if not {"-D", "--devices"} & set(argv):
        return list(argv)
    from platoon_base.devices.discovery import is_device_name

    spread, following = [], False
    for i, word in enumerate(argv):
        if following and is_device_name(word):
            spread += ["-D", word]
            continue
        following = i > 0 and argv[i - 1] in ("-D", "--devices")
        spread.append(word)
        module_follows = word in ("-m", "--module") and not "".join(argv[i + 1 : i + 2]).startswith("-")
        if word.endswith(".py") or word in ("-", "--") or module_follows:
            return spread + argv[i + 1 :]
    return spread


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As for stderr: a path that is not UTF-8 must not end a job.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not {"run", "join"} & set(argv[:1]):  # Their output is the script's.
        watch_output()
    try:
        with default_sigchld(), _flushed():
            commands(spread_devices(argv), prog_name="platoon")
    except (PlatoonError, RuntimeError, OSError) as exc:
        error = output_error()
        if isinstance(exc, OSError) and error is not None and error.errno == exc.errno:
            why = lost_output()  # Empty if the reader has closed the pipe.
            lenient_output()
            if why:
                click.echo(f"platoon: cannot write the output: {why}", err=True)
            sys.exit(1)
        text = str(exc) if isinstance(exc, PlatoonError) else limit_text(exc)
        if isinstance(exc, FileNotFoundError) and not working_folder():
            text = "the working directory was removed: cd to one that exists"
        if not text:
            raise
        click.echo(f"platoon: {text}", err=True)
        sys.exit(2)


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Write all output at the end of the ``with`` block, while an error can still be shown."""
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
