"""The ``platoon`` command. The only place that prints and exits."""

from __future__ import annotations

import contextlib
import io
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from platoon_base import __version__
from platoon_base.checkpoints.writer import Saving
from platoon_base.cli import report
from platoon_base.cli.configuration import chosen_devices, require_this_host
from platoon_base.cli.data_server import data_server_option
from platoon_base.cli.display import summary, write_summary
from platoon_base.cli.doctor import checks
from platoon_base.cli.failures import Failures
from platoon_base.cli.launcher import (
    CENTERS,
    choose_center,
    launch,
    open_checkpoints,
    require_runnable,
    worker_environment,
)
from platoon_base.cli.log_folder import LogFolder, new_log_folder
from platoon_base.cli.screen import TEES, Screen
from platoon_base.cli.study import Method, built_in, read_method
from platoon_base.cli.tune import Tuning, tune, write_results
from platoon_base.controller import child
from platoon_base.controller.controller import Result
from platoon_base.controller.processes import GRACE_S
from platoon_base.controller.program import Program
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.controller.watch import default_sigchld
from platoon_base.devices.discovery import is_device_name
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job.files import JobFiles, leftovers, remove, running
from platoon_base.job.hosting import JobOptions
from platoon_base.system.environment import JOB, RANK

__all__ = ["main"]


def _folder(context: click.Context, parameter: click.Parameter, name: str | None) -> Path | None:
    """Refuse an empty name, such as that of a variable that is not set: to a Path it is the working directory."""
    if name == "":
        raise click.BadParameter("got an empty name: name a folder")
    return None if name is None else Path(name)


def _seconds(context: click.Context, parameter: click.Parameter, seconds: float) -> float:
    if not 0 <= seconds < math.inf:  # NaN is not
        raise click.BadParameter(f"got {seconds:g}: it must be a number of seconds, 0 or more")
    return seconds


_SCRIPT = {"allow_interspersed_args": False}  # what follows the script is the script's


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="platoon")
def commands() -> None:
    """Data parallelism for Theano-era frameworks and Keras: run one script as N cooperating workers."""


@commands.command("launch", context_settings=_SCRIPT, short_help="Run a script as N workers.")
@click.option(
    "-n", "--workers", type=int, metavar="N", help="Number of workers: on the first N CUDA devices, or on the CPU."
)
@click.option(
    "-D",
    "--devices",
    multiple=True,
    metavar="DEV ...",
    help="One worker for each device, such as cuda0 cuda1. Or one word: cuda, all CUDA devices; cpu, with -n; auto, "
    "cuda where there is one, else cpu.  [auto]",
)
@click.option(
    "--center",
    type=click.Choice(CENTERS),
    default="auto",
    show_default=True,
    help="Where the shared parameters live: in shared memory, or on the GPUs, a part on each.",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    help="Folder for the workers' logs; those of an earlier run are moved to earlier/ in it.  "
    "[platoon_logs/SCRIPT/TIME]",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Common to all workers.  [0, or the checkpoint's]")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start a worker that fails again, up to N times in all; it takes the center over. Where the workers need each "
    "other (averaged gradients, Keras, Blocks) all are started again, from the newest checkpoint.",
)
@click.option(
    "--checkpoint-every",
    type=float,
    metavar="S",
    help="Save the center and everybody's position every S seconds, and at the end, in checkpoints/ beside the logs.",
)
@click.option(
    "--resume",
    callback=_folder,
    metavar="DIR",
    help="Go on from the newest checkpoint in DIR, if there is one, and save there.",
)
@click.option(
    "--grace",
    type=float,
    default=GRACE_S,
    show_default=True,
    metavar="S",
    callback=_seconds,
    help="After Ctrl-C give the workers S seconds to save something; a second Ctrl-C ends them at once.",
)
@click.option(
    "--tee",
    type=click.Choice(TEES),
    default="0",
    show_default=True,
    help="Whose output is shown above the table: that of rank 0, of all workers, or of none. Logs have all of it.",
)
@click.option("--allow-failures", is_flag=True, help="End with success if at least one worker does.")
@click.option(
    "--summary", "summary_file", type=click.Path(path_type=Path), help="Write the summary as JSON to this file."
)
@click.option(
    "-m", "--module", is_flag=True, help="SCRIPT is the dotted name of a module, found and run as by python -m."
)
@data_server_option
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch_command(
    workers: int | None,
    devices: tuple[str, ...],
    center: str,
    log_dir: Path | None,
    seed: int | None,
    max_restarts: int,
    checkpoint_every: float | None,
    resume: Path | None,
    grace: float,
    tee: str,
    allow_failures: bool,
    summary_file: Path | None,
    module: bool,
    data_server: list[str],
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with ARGS as N workers of one job.

    Without -n and -D there is a worker for each CUDA device, of those that CUDA_VISIBLE_DEVICES lets through. Where
    there is none, there is a worker for each core, at most 4. With -n alone the first N CUDA devices are taken; if
    there are fewer, that is an error. With GPUs there, only -D cpu takes the CPU.

    A worker on a GPU has Theano's device set, and floatX=float32 and dnn.enabled=False unless you have set them.

    The exit status is the worst of all workers', or, with --allow-failures, the best; that of a worker that was started
    again is its last. Ctrl-C ends all workers: at once those that do not handle it, others after --grace seconds.
    """
    console = report.open_console()
    report.log_to(console)
    program = Program(script, module)
    program.require()
    require_this_host(())
    chosen = chosen_devices(workers, devices)
    require_runnable(program, chosen.devices)
    center = choose_center(center, chosen.devices)
    _require_folder_of(summary_file)
    folder = log_dir or new_log_folder(program.title)
    options = JobOptions(seed=seed or 0, center=center, max_restarts=max_restarts, grace_s=grace)
    lines = [report.opening(chosen, center, folder)]
    with contextlib.ExitStack() as stack:
        if checkpoint_every is not None or resume is not None:
            kept = resume or folder / "checkpoints"
            saving, checkpoint = open_checkpoints(kept, checkpoint_every, resume is not None, seed)
            options = options._replace(saving=saving, resume=checkpoint)
            lines.insert(0, report.resumed_from(kept, checkpoint, len(chosen.devices)))
        stack.enter_context(_open_logs(folder, options.saving))  # last, for it moves what is there
        for line in lines:
            report.print_line(console, line)
        signals = stack.enter_context(StopSignals())
        words = (program, args, chosen.devices, folder, options, signals, data_server)
        result, failures = _launch_and_show(console, tee, *words)
        if allow_failures:
            result = result.with_failures_allowed()
        report.print_result(console, result, len(chosen.devices), folder, failures)
        if summary_file is not None:
            write_summary(summary_file, summary(result, len(chosen.devices)))
        signals.ignore_from_now_on()
    sys.exit(result.status)


def _open_logs(folder: Path, saving: Saving | None) -> LogFolder:
    """Return the folder of the logs, not opened yet; it is locked already if the checkpoints are in it too."""
    is_locked = saving is not None and saving.folder.path.resolve() == folder.resolve()
    return LogFolder(folder, lock=not is_locked)


def _launch_and_show(
    console: Console,
    tee: str,
    program: Program,
    args: Sequence[str],
    devices: Sequence[str],
    folder: Path,
    options: JobOptions,
    signals: StopSignals,
    server: Sequence[str],
) -> tuple[Result, Failures]:
    """Run a job; show its progress and its workers' output meanwhile. Also returns which failures were shown."""
    with Screen(console, folder, len(devices), tee) as screen:
        result = launch(program, args, devices, folder, options._replace(observer=screen.observe), signals, server)
    return result, screen.failures


@commands.command("tune", context_settings=_SCRIPT, short_help="Find out which method to train a script with.")
@click.option("-n", "--workers", type=int, metavar="N", help="Number of workers, as of launch.")
@click.option("-D", "--devices", multiple=True, metavar="DEV ...", help="As of launch.  [auto]")
@click.option("--center", type=click.Choice(CENTERS), default="auto", show_default=True, help="As of launch.")
@click.option("--steps", type=click.IntRange(min=1), metavar="K", help="Compare after K mini-batches of each worker.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="M",
    help="Compare after M minutes of training; with --steps a run ends at whichever comes first.  [1 without --steps]",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each method; medians count."
)
@click.option(
    "--watch",
    metavar="NAME[:max]",
    help="The reported value to compare; :max if higher is better.  [a validation loss, if there is one]",
)
@click.option(
    "--method",
    "texts",
    multiple=True,
    metavar="METHOD",
    help='A method to try instead of the built-in ones: a rule, a period or both, such as "EASGD(alpha=0.2) every 4".',
)
@click.option(
    "--also",
    multiple=True,
    metavar="WORDS",
    help="Try the script with these arguments too, such as --also=--sync or --also='--rate 0.002'.",
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=600,
    show_default=True,
    metavar="S",
    help="End a run after S seconds in all, its start included.",
)
@click.option(
    "--summary", "summary_file", type=click.Path(path_type=Path), help="Write all results as JSON to this file."
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the dotted name of a module, as of launch.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def tune_command(
    workers: int | None,
    devices: tuple[str, ...],
    center: str,
    steps: int | None,
    minutes: float | None,
    seeds: int,
    watch: str | None,
    texts: tuple[str, ...],
    also: tuple[str, ...],
    limit: float,
    summary_file: Path | None,
    module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with ARGS by several methods, each for a short time, and tell which one to take.

    First the script runs on one worker, as it is without this package. Then N workers train it by the default rule and
    by others. They take the rule and the period where the script names none. So leave rule and every_n_batches out, or
    the script's win. Values are compared that the script reports: a fit of Keras reports its logs, and
    DistributedMonitoring of Blocks its records; Lasagne and other loops call connect().report({"val_loss": loss}).

    The script runs many times in this folder, and writes its files each time. It must begin anew each time.
    """
    console = report.open_console()
    report.log_to(console)
    program = Program(script, module)
    program.require()
    require_this_host(())
    chosen = chosen_devices(workers, devices)
    require_runnable(program, chosen.devices)
    count = len(chosen.devices)
    if count < 2:
        raise ConfigurationError("got one worker: methods differ with two or more; pass -n 2, or name two devices")
    choose_center(center, chosen.devices)
    _require_folder_of(summary_file)
    plain, default, *others = built_in(count)
    named = [read_method(text, count) for text in texts] if texts else [default, *others]
    named += [Method(count, words=tuple(shlex.split(words))) for words in also]
    folder = new_log_folder(f"{program.title}-tune")
    methods = list(dict.fromkeys([plain, *named]))
    runs = f"{len(methods)} methods" if seeds == 1 else f"{len(methods)} methods, {seeds} runs of each"
    report.print_line(console, f"{report.opening(chosen, center, folder)}, {runs}")
    with StopSignals() as signals:
        status, results = tune(
            Tuning(
                program,
                args,
                chosen.devices,
                center,
                methods=methods,
                default=default,
                seeds=seeds,
                steps=steps,
                seconds=60 * minutes if minutes else None if steps else 60.0,
                run_s=limit,
                watch=watch,
                folder=folder,
            ),
            console,
            signals,
        )
        if summary_file is not None:
            write_results(summary_file, results)
        signals.ignore_from_now_on()
    sys.exit(status)


def _require_folder_of(summary_file: Path | None) -> None:
    if summary_file is not None and not summary_file.resolve().parent.is_dir():
        raise ConfigurationError(f"--summary {summary_file}: there is no folder {summary_file.parent}; make it first")


@commands.command("join", context_settings=_SCRIPT, short_help="Add one more worker to a running job.")
@click.option("-D", "--device", default="cpu", show_default=True, help="What the worker computes on, such as cuda1.")
@click.argument("job")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="{SCRIPT | -m MODULE} [ARGS]...")
def join_command(device: str, job: str, words: tuple[str, ...]) -> None:
    """Run SCRIPT as one more worker of JOB, which `platoon jobs` names; or MODULE, as python -m would."""
    if words[0].startswith("-") and words[0] != "-m":
        raise click.UsageError(f"got {words[0]} after JOB: options come before it")
    _require_module(words)
    program, args = Program.of(words)
    require_runnable(program, [device])
    files = JobFiles.find(job)
    os.environ.update(worker_environment(device, files.size + 1, os.environ))
    os.environ[JOB] = files.folder
    os.environ.pop(RANK, None)
    sys.argv = ["platoon-join", *program.words, *args]
    child.main()


def _require_module(words: tuple[str, ...]) -> None:
    if words == ("-m",):
        raise click.UsageError("-m needs the dotted name of a module")


@commands.command("run", context_settings=_SCRIPT, short_help="Run a script alone, with the repairs it may need.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="{SCRIPT | -m MODULE} [ARGS]...")
def run_command(words: tuple[str, ...]) -> None:
    """Run SCRIPT as python would, with the repairs that Theano and its contemporaries need.

    For scripts of platoon_base.platoon_api that are started by hand, and import Theano before anything of this package.
    """
    _require_module(words)
    program, args = Program.of(words)
    program.require()
    sys.argv = ["platoon-run", *program.words, *args]
    child.main()


@commands.command("jobs")
def jobs_command() -> None:
    """List this user's running jobs."""
    for files in running():
        click.echo(f"{files.job}  {files.size} workers  {files.folder}")


@commands.command("doctor")
def doctor_command() -> None:
    """Print what is installed, which back ends work, and how to get the rest."""
    for check in checks():
        mark = click.style("ok  ", fg="green") if check.works else click.style("no  ", fg="yellow")
        click.echo(f"{mark}{check.name:24}{check.finding}")
        if check.remedy:
            click.echo(f"{'':28}-> {check.remedy}")


@commands.command("clean")
@click.option("--dry-run", is_flag=True, help="Only list.")
def clean_command(dry_run: bool) -> None:
    """List and remove what this user's dead jobs left behind. Running jobs are not touched."""
    found = leftovers()
    stays = False
    for leftover in found:
        done = "would remove" if dry_run else "removed" if remove(leftover) else "cannot remove"
        stays |= done == "cannot remove"
        click.echo(f"{done}  {leftover.size_bytes:>12,} bytes  {leftover.path}")
    if not found:
        click.echo("nothing left behind")
    sys.exit(int(stays))


def spread_devices(argv: list[str]) -> list[str]:
    """Turn ``-D cuda0 cuda1 script.py`` into ``-D cuda0 -D cuda1 script.py``, which is what click reads."""
    spread, following = [], False
    for i, word in enumerate(argv):
        if following and is_device_name(word):
            spread += ["-D", word]
            continue
        following = i > 0 and argv[i - 1] in ("-D", "--devices")
        spread.append(word)
        module_follows = word in ("-m", "--module") and not "".join(argv[i + 1 : i + 2]).startswith("-")
        if word.endswith(".py") or module_follows:
            return spread + argv[i + 1 :]
    return spread


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a path that is not UTF-8 ends no job
    try:
        with default_sigchld():
            commands(spread_devices(argv), standalone_mode=True)
    except PlatoonError as exc:
        click.echo(f"platoon: {exc}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
