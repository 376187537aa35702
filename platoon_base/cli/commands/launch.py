"""``platoon launch``: run a script as N workers."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from platoon_base import __version__
from platoon_base.cli import report
from platoon_base.cli.commands.arguments import SCRIPT, result_file, timeout_alias
from platoon_base.cli.configuration import config_option
from platoon_base.cli.data_server import data_server_option
from platoon_base.cli.deterministic import deterministic_job, deterministic_options
from platoon_base.cli.launch_options import HostOptions, StartOptions, host_options, start_options
from platoon_base.cli.launcher import choose_center, launch, open_checkpoints
from platoon_base.cli.observers import Observed, Observer, Observers
from platoon_base.cli.other_host import other_hosts, serve_other_host
from platoon_base.cli.report import summary
from platoon_base.cli.run_files import log_folder, new_log_folder, write_json
from platoon_base.cli.screen import TEES, Screen
from platoon_base.cli.trackers import tracker_options
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.hosts import Place
from platoon_base.job.hosting import JobOptions
from platoon_base.multihost.rendezvous import fingerprint, introduction
from platoon_base.rules import parse_rule
from platoon_base.system.environment import EVERY_N_BATCHES, RULE, threads_of
from platoon_base.system.job_paths import path_of
from platoon_base.system.limits import available_cores
from platoon_base.worker_process.breakpoints import lend_terminal

_SETTINGS = (("rule", RULE), ("every_n_batches", EVERY_N_BATCHES))


def _folder(context: click.Context, parameter: click.Parameter, name: str | None) -> Path | None:
    """Refuse an empty name (an unset variable): Path would make it the working directory."""
    if name == "":
        raise click.BadParameter("got an empty name: name a folder")
    return None if name is None else Path(name)


def _rule_text(text: str) -> str:
    try:
        parse_rule(text)
    except ConfigurationError as exc:
        raise click.BadParameter(str(exc)) from exc
    return text


def _for_workers(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Set the environment variable of an option, which the workers read."""
    if value is not None and not context.resilient_parsing:
        os.environ[str(parameter.envvar)] = str(value)
    return value


@click.command("launch", context_settings=SCRIPT)
@start_options
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    help="Folder for the workers' logs. Logs of an earlier run are moved to earlier/ in it.  "
    "[platoon_logs/SCRIPT/TIME]",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of all workers.  [0, or the checkpoint's]")
@click.option(
    "--rule",
    type=_rule_text,
    metavar="RULE",
    envvar=RULE,
    callback=_for_workers,
    expose_value=False,
    help='The synchronization rule if the script names none, such as "EASGD(alpha=0.25)".',
)
@click.option(
    "--every-n-batches",
    type=click.IntRange(min=1),
    metavar="N",
    envvar=EVERY_N_BATCHES,
    callback=_for_workers,
    expose_value=False,
    help="Mini-batches between two synchronizations if the script does not set it.  [the rule's]",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Restart failed workers, at most N times in total. A restarted worker starts from the "
    "center. If the workers depend on each other (averaged gradients, loops of most "
    "frameworks), all of them restart from the newest checkpoint.",
)
@click.option(
    "--checkpoint-every",
    type=float,
    metavar="S",
    help="Save the center and the position of each worker every S seconds and at the end, in "
    "checkpoints/ beside the logs.",
)
@click.option(
    "--resume",
    callback=_folder,
    metavar="DIR",
    help="Continue from the newest checkpoint in DIR, if there is one, and save there.",
)
@timeout_alias(
    "--grace",
    "grace",
    "Seconds that workers have to save their state after Ctrl-C. A second Ctrl-C ends them immediately.",
)
@click.option(
    "--tee",
    type=click.Choice(TEES),
    default="0",
    show_default=True,
    help="Whose output to show above the table: that of rank 0, of all workers, or of none. The logs have all of it.",
)
@click.option(
    "--allow-failures",
    is_flag=True,
    help="Exit with success if at least one worker succeeds. The other workers continue even if "
    "one fails before its first step.",
)
@click.option(
    "--fail-fast",
    is_flag=True,
    help="End the job when a worker fails that is not restarted. By default only a failure "
    "before a worker's first step ends the job.",
)
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(path_type=Path),
    callback=result_file,
    help="Write the summary as JSON to this file.",
)
@host_options
@deterministic_options
@tracker_options
@data_server_option
@config_option
def command(
    log_dir: Path | None,
    seed: int | None,
    max_restarts: int,
    checkpoint_every: float | None,
    resume: Path | None,
    tee: str,
    allow_failures: bool,
    fail_fast: bool,
    summary_file: Path | None,
    config: Path | None,
    data_server: list[str],
    hosts: HostOptions,
    deterministic: bool,
    trackers: Callable[[Observed], list[Observer]],
    **words: Any,
) -> None:
    """Run SCRIPT with ARGS as N workers of one job; - is a script on standard input, and -- ends the options.

    \b
    Examples:
      platoon launch train.py --epochs 10
      platoon launch -n 2 train.py
      platoon launch --checkpoint-every 60 --resume saved train.py

    A job on several hosts is launched on each of them with the same command (srun, mpirun, or by
    hand with --nnodes). There -n and -D describe the workers of one host. Host 0 has the table, the
    summary and the checkpoints.

    Without -n and -D the job has a worker for each CUDA device in CUDA_VISIBLE_DEVICES. Without
    CUDA devices it has a worker for each core, at most 4. -n alone uses the first N CUDA devices;
    too few of them is an error. On a machine with GPUs, only -D cpu uses the CPU.

    For a worker on a GPU, Theano's device is set, and floatX=float32 and dnn.enabled=False unless
    you have set them.

    The exit status is the worst one of the workers, or with --allow-failures the best one. The
    last start of a restarted worker counts. Output or a summary that cannot be written does not
    change the status. Ctrl-C ends all workers: those that do not handle it immediately, others
    after --grace seconds.
    """  # noqa: D301
    if fail_fast and allow_failures:
        raise click.UsageError("got --fail-fast and --allow-failures, which contradict each other: leave one out")
    start = StartOptions.read(**words)
    console, program, place = start.console, start.program, hosts.place
    if place.host:
        sys.exit(serve_other_host(start, hosts, log_dir, data_server))
    chosen = start.choose()
    center = choose_center("host" if start.center == "auto" and place.hosts > 1 else start.center, chosen.devices)
    folder = log_dir or new_log_folder(program.title)
    fatal = "never" if allow_failures else "always" if fail_fast else "early"
    story = Story()
    options = JobOptions(seed=seed or 0, center=center, max_restarts=max_restarts, fail_fast=fatal, story=story)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        table = None
        if place.hosts > 1:
            here = introduction(place, chosen.devices, fingerprint(program, start.args))
            table = stack.enter_context(other_hosts(console, hosts, here, signals))
        size = len(chosen.devices) if table is None else table.world.size
        lines = [report.opening(chosen, center, folder, None if table is None else table.world)]
        if checkpoint_every is not None or resume is not None:
            kept = resume or path_of(folder, "checkpoints")
            saving, checkpoint = open_checkpoints(kept, checkpoint_every, resume is not None, seed)
            options = replace(options, saving=saving, resume=checkpoint)
            lines.insert(0, report.resumed_from(kept, checkpoint, size))
        if deterministic:
            options = deterministic_job(options)
            lines.append(f"each worker uses {threads_of(os.environ)}; another number of threads changes the bits")
        if (cores := available_cores()) < len(chosen.devices) and set(chosen.devices) == {"cpu"}:
            lines.append(report.crowded(len(chosen.devices), cores))
        settings = _settings(start, place, size, chosen.devices, options)
        observers = trackers(Observed(program.title, " ".join(start.command), folder, story, settings))
        lines += filter(None, (each.opening for each in observers))
        # The logs come last, because this moves earlier ones. The checkpoints may have locked the folder.
        is_locked = options.saving is not None and options.saving.folder.path.resolve() == folder.resolve()
        stack.enter_context(log_folder(folder, lock=not is_locked))
        for line in lines:
            report.print_line(console, line)
        lend_terminal(size)
        with Screen(console, folder, size, tee, program.shown) as screen, Observers([screen, *observers]) as observing:
            options = replace(options, observer=observing.take)
            result = launch(program, start.args, chosen.devices, folder, options, signals, data_server, table)
            observing.result = result
        if allow_failures:
            result = result.with_failures_allowed()
        report.print_result(console, result, size, folder, screen.failures)
        if summary_file is not None:
            write_json(summary_file, summary(result, size))
        report.warn_of_lost_output(folder)
        signals.ignore_from_now_on()
    sys.exit(result.status)


def _settings(
    start: StartOptions, place: Place, size: int, devices: Sequence[str], options: JobOptions
) -> dict[str, float | str]:
    """Return what a job is started with, for trackers."""
    of_workers = {name: os.environ[variable] for name, variable in _SETTINGS if variable in os.environ}
    return {
        "script": start.program.shown,
        "args": shlex.join(start.args),
        "workers": size,
        "hosts": place.hosts,
        "devices": " ".join(devices),
        "center": options.center,
        "seed": options.seed,
        "max_restarts": options.max_restarts,
        "deterministic": str(options.deterministic),
        **of_workers,
        "platoon_version": __version__,
    }
