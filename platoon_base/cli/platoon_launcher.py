"""The command ``platoon-launcher``: starts an experiment by its name, as the original did."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from platoon_base.cli import report
from platoon_base.cli.configuration import chosen_devices, require_one_host, require_this_host
from platoon_base.cli.observers import Observers
from platoon_base.cli.run_files import new_log_folder
from platoon_base.cli.screen import Screen
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.controller.watch import described, exit_status
from platoon_base.devices.discovery import require_devices
from platoon_base.errors import ConfigurationError
from platoon_base.platoon_api.channel import Controller
from platoon_base.system.output import lenient_output, watch_output
from platoon_base.system.process import catches, default_sigchld, die_with
from platoon_base.timeouts import POLL_S
from platoon_base.worker_process.program import Program, python_main

log = logging.getLogger(__name__)

OK, FAILED, WRONG_ARGUMENTS, SYSTEM_ERROR, OTHER = range(5)
_WITH_TEXT = ("-c", "--controller-args", "-w", "--workers-args")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: one of the five above."""
    try:
        watch_output()
        lenient_output()
        args = _parser().parse_args(_attached(sys.argv[1:] if argv is None else argv))
        with default_sigchld():
            return _run(args)
    except SystemExit as exc:  # argparse raises it.
        return OK if not exc.code else WRONG_ARGUMENTS
    except ConfigurationError as exc:
        click.echo(f"platoon-launcher: {exc}", err=True)
        return WRONG_ARGUMENTS
    except (OSError, subprocess.SubprocessError) as exc:
        click.echo(f"platoon-launcher: {exc}", err=True)
        return SYSTEM_ERROR
    except Exception:  # Other errors have their own status.
        traceback.print_exc()
        return OTHER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="platoon-launcher",
        description="Run EXPERIMENT_worker.py on each device, and EXPERIMENT_controller.py if "
        "there is one. Logs are in PLATOON_LOGS/EXPERIMENT/. Devices: -D, else "
        "PLATOON_DEVICES, else .platoonrc, else every GPU, else a worker for each "
        "core. Exit status: 0 success, 1 a worker or the controller failed, 2 wrong "
        "arguments, 3 error of the system, 4 any other error.",
    )
    parser.add_argument("experiment_name", metavar="EXPERIMENT", help="The common beginning of the scripts' names.")
    parser.add_argument("-D", "--devices", nargs="+", default=[], metavar="DEV", help="One worker for each device.")
    parser.add_argument("-H", "--hosts", nargs="+", default=[], metavar="HOST", help="Only this host is supported.")
    parser.add_argument("-c", "--controller-args", default="", metavar="ARGS", help="Arguments of the controller.")
    parser.add_argument("-w", "--workers-args", default="", metavar="ARGS", help="Arguments of the workers.")
    return parser


def _attached(argv: Sequence[str]) -> list[str]:
    """Attach values to options, ``-w=--seed=1``: argparse takes a word with a dash as an option."""
    attached: list[str] = []
    for word in argv:
        if attached and attached[-1] in _WITH_TEXT:
            attached[-1] += f"={word}"
        else:
            attached.append(word)
    return attached


def _run(args: argparse.Namespace) -> int:
    require_this_host(args.hosts)
    require_one_host()
    worker, controller = (Program(f"{args.experiment_name}_{role}.py") for role in ("worker", "controller"))
    _require_experiment(args.experiment_name, worker)
    chosen = chosen_devices(None, args.devices)
    require_devices(chosen.devices)
    words = ["--single", *_split(args.controller_args, "-c")]
    _split(args.workers_args, "-w")  # Check it before a log folder is made.
    console = report.open_console(plain=True)
    report.log_to(console)
    own = None if controller.files() else _own_controller_arguments(words)
    folder = _new_folder(Path(args.experiment_name).name)
    report.print_line(console, report.opening(chosen, "host", folder))
    screen = Screen(console, folder, len(chosen.devices), tee="none")  # It shows warnings and failures.
    if own is None:
        words = [args.experiment_name, str(folder), "-D", *chosen.devices, *words]
        with screen, Observers([screen]):
            status = _run_script(controller, [*words, f"--workers-args={args.workers_args}"])
        if status:
            how = described(exit_status(status))
            logs = f"its output is above, the workers' output is in {folder}"
            click.echo(f"platoon-launcher: {controller.name} ended with {how}; {logs}", err=True)
        return FAILED if status else OK
    serving = Controller(
        **{**own, "devices": chosen.devices, "experiment_name": args.experiment_name},
        log_directory=str(folder),
        worker_args=args.workers_args,
    )
    with screen, Observers([screen]):
        status = serving.serve()
    if serving.result is not None:
        report.print_result(console, serving.result, len(chosen.devices), folder, screen.failures)
    return OK if status == 0 else FAILED


def _require_experiment(name: str, worker: Program) -> None:
    """Raise `ConfigurationError` without such an experiment; the name may be the script's."""
    experiment = re.sub(r"(_worker|_controller)?(\.py)?$", "", name)
    if not worker.files() and experiment not in ("", name):
        raise ConfigurationError(
            f"got {name!r}, and there is no script {worker.name!r}: pass the experiment's name, "
            f"{experiment!r}, for {experiment}_worker.py"
        )
    worker.require()


def _new_folder(experiment: str) -> Path:
    try:
        return new_log_folder(experiment, Path("PLATOON_LOGS"))
    except ConfigurationError as exc:  # No argument of this command could change it.
        raise OSError(str(exc)) from exc


def _split(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise ConfigurationError(f"got {option} {text!r}, in which a quote is not closed ({exc}): close it") from exc


def _own_controller_arguments(words: Sequence[str]) -> dict[str, object]:
    parsed = Controller.default_parser().parse_args(["", "", *words])
    found = Controller.default_arguments(parsed)
    # Our controller has no port unless one is given.
    if not any(word.startswith("--control-port") for word in words):
        found["control_port"] = None
    return {name: found[name] for name in ("control_port", "data_port", "data_hwm", "multi")}


def _run_script(program: Program, args: Sequence[str]) -> int:
    with StopSignals() as signals:
        process = subprocess.Popen(
            [*python_main("platoon_base.worker_process.child"), *program.argv, *args],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Otherwise Ctrl-C would reach it twice.
            preexec_fn=functools.partial(die_with, os.getpid(), signal.SIGTERM),
        )
        while process.poll() is None:
            for number in signals.take(POLL_S):
                process.send_signal(number)
            for number in signals.take_for_workers():
                if catches(process.pid, number):
                    process.send_signal(number)
        return process.returncode
