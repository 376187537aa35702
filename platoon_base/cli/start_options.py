"""Options of `platoon launch` and `platoon tune` for the script, the workers and the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click
from rich.console import Console

from platoon_base.cli import report
from platoon_base.cli.commands.arguments import hint_of_misplaced, program_and_args, timeout_option
from platoon_base.cli.configuration import chosen_devices
from platoon_base.cli.launcher import CENTERS, require_runnable
from platoon_base.cli.run_file import of_script, of_workers
from platoon_base.devices.discovery import Choice
from platoon_base.system.output import lenient_output
from platoon_base.worker_process.program import Program

__all__ = ["StartOptions", "start_options"]

_OPTIONS = (
    click.option(
        "-n",
        "--workers",
        type=int,
        metavar="N",
        callback=of_workers,
        help="Number of workers, on the first N CUDA devices or on the CPU.",
    ),
    click.option(
        "-D",
        "--devices",
        multiple=True,
        metavar="DEV ...",
        callback=of_workers,
        help="One worker for each device, such as cuda0 cuda1. Or one word: cuda for all CUDA "
        "devices, cpu (with -n), or auto, which is cuda if there is one and else cpu.  [auto]",
    ),
    click.option(
        "--center",
        type=click.Choice(CENTERS),
        default="auto",
        show_default=True,
        help="Where the shared parameters are: in shared memory, or on the GPUs, a part on each.",
    ),
    click.option(
        "-m", "--module", is_flag=True, help="SCRIPT is the dotted name of a module; run it as python -m does."
    ),
    timeout_option,
    click.argument("script", type=click.Path()),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, callback=of_script),
)


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which passes their values to `StartOptions.read`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class StartOptions(NamedTuple):
    console: Console
    program: Program
    args: tuple[str, ...]
    workers: int | None
    devices: tuple[str, ...]
    center: str

    @classmethod
    def read(
        cls,
        workers: int | None,
        devices: tuple[str, ...],
        center: str,
        module: bool,
        script: str,
        args: tuple[str, ...],
    ) -> StartOptions:
        """Open the console, find the program, and print a hint if options follow the script."""
        lenient_output()
        console = report.open_console()
        report.log_to(console)
        program, _ = program_and_args(["-m", script] if module else [script])
        if hint := hint_of_misplaced(click.get_current_context(), program, args):
            report.print_line(console, hint)
        return cls(console, program, args, workers, devices, center)

    @property
    def command(self) -> list[str]:
        """The words of the script's command line."""
        return [*self.program.argv, *self.args]

    def choose(self) -> Choice:
        """Choose the workers' devices; ConfigurationError if there is no program or device."""
        chosen = chosen_devices(self.workers, self.devices)
        require_runnable(self.program, chosen.devices)
        return chosen
