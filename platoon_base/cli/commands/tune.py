"""``platoon tune``: find out which method to train a script with."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from platoon_base.cli import report
from platoon_base.cli.charts import INSTALL, NO_CHARTS, has_charts
from platoon_base.cli.commands.arguments import (
    SCRIPT,
    result_file,
)
from platoon_base.cli.configuration import require_one_host, require_this_host
from platoon_base.cli.launch_options import StartOptions, start_options
from platoon_base.cli.launcher import choose_center
from platoon_base.cli.run_files import new_log_folder, no_job_fails_by, write_json, write_text
from platoon_base.cli.tune import Method, Tuning, built_in, read_method, require_optuna, tune
from platoon_base.cli.tune_report import lines, page, picture, results
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.errors import ConfigurationError

_FEW = 4  # Methods without --all, plain training included.
_F = Callable[..., Any]
_COUNT, _POSITIVE = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)


def _svg_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn at the end."""
    if path is not None and path.suffix.lower() != ".svg":
        raise ConfigurationError(f"got --plot {path}: the chart is written as SVG; name a file ending in .svg")
    if path is not None and not has_charts():
        missing = "matplotlib, which draws it, is not installed"
        raise ConfigurationError(f"got --plot {path}, but {missing}: {INSTALL}")
    return result_file(context, option, path)


def _file(option: str, name: str, callback: Any, text: str) -> Callable[[_F], _F]:
    """Return an option that names a file."""
    return click.option(option, name, type=click.Path(path_type=Path), callback=callback, help=text)


@click.command("tune", context_settings=SCRIPT)
@start_options
@click.option("--steps", type=_COUNT, metavar="K", help="Compare after K mini-batches per worker.")
@click.option(
    "--minutes",
    type=_POSITIVE,
    metavar="M",
    help="Compare after M minutes of training, or at --steps if that is earlier.  [1 without --steps]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs of each method; their medians are compared.",
)
@click.option(
    "--watch",
    metavar="NAME[:max]",
    help="The reported value to compare; append :max if higher is better.  [a validation loss if there is one]",
)
@click.option(
    "--method",
    "texts",
    multiple=True,
    metavar="METHOD",
    help='A method to try instead of the built-in ones: a rule, a period or both, such as "EASGD() every 4".',
)
@click.option("--all", "every", is_flag=True, help="Try all nine built-in methods, not only three.")
@click.option("--no-halving", is_flag=True, help="Run all methods to the end; drop none.")
@click.option(
    "--also",
    multiple=True,
    metavar="WORDS",
    help="Also try the script with these arguments, such as --also=--sync or --also='--rate 0.002'.",
)
@click.option(
    "--limit",
    type=_POSITIVE,
    default=600,
    show_default=True,
    metavar="S",
    help="End a run after S seconds in total, its start included.",
)
@_file("--summary", "summary_file", result_file, "Write all results as JSON.")
@_file("--plot", "picture_file", _svg_file, "Draw the values of each method as SVG.")
@_file("--report", "report_file", result_file, "Write table, advice and chart as an HTML page.")
def command(
    texts: tuple[str, ...],
    every: bool,
    also: tuple[str, ...],
    summary_file: Path | None,
    picture_file: Path | None,
    report_file: Path | None,
    seeds: int,
    steps: int | None,
    minutes: float | None,
    limit: float,
    watch: str | None,
    no_halving: bool,
    **words: Any,
) -> None:
    """Run SCRIPT with ARGS with several methods for a short time, and report the best one.

    \b
    Examples:
      platoon tune -n 4 train.py
      platoon tune -n 4 --seeds 1 --steps 500 train.py --rate 0.1
      platoon tune -n 2 --method "EASGD(alpha=0.2) every 4" train.py

    First the script runs on one worker, without synchronization. Then N workers train it with the
    default rule and with others. A rule or period that the script names has priority, so set
    neither rule nor every_n_batches. The compared values are those that the script reports: fit of
    Keras, DistributedMonitoring of Blocks and StopOnPatience of Lasagne report by themselves; other
    loops call connect().report({"val_loss": loss}).

    Optuna drops methods that are worse than the median of the finished runs. Plain training and
    the defaults always run to the end; --no-halving drops none.

    The script runs many times in this folder and writes its files each time. It must not resume
    from an earlier run.
    """  # noqa: D301
    start = StartOptions.read(**words)
    console = start.console
    require_this_host(())
    require_one_host()
    chosen = start.choose()
    count = len(chosen.devices)
    if count < 2:
        raise ConfigurationError("got one worker, and methods differ only with several: pass -n 2, or name two devices")
    choose_center(start.center, chosen.devices)
    if every and texts:
        raise ConfigurationError("got --all and --method, which replaces the built-in methods: leave one out")
    require_optuna()
    plain, default, *others = built_in(count)[: None if every else _FEW]
    named = [read_method(text, count) for text in texts] if texts else [default, *others]
    named += [Method(count, words=tuple(shlex.split(words))) for words in also]
    folder = new_log_folder(f"{start.program.title}-tune")
    methods = list(dict.fromkeys([plain, *named]))
    runs = f"{len(methods)} methods" + (f", {seeds} runs of each" if seeds > 1 else "")
    report.print_line(console, f"{report.opening(chosen, start.center, folder)}, {runs}")
    if report_file is not None and not has_charts():
        report.print_line(console, NO_CHARTS)
    with StopSignals() as signals:
        load = os.getloadavg()[0]
        about = (start, chosen.devices, methods, default, folder, load)
        tuning = Tuning(*about, seeds, steps, minutes, limit, watch, no_halving)
        study = tune(tuning, console, signals)
        report.print_line(console, "")
        for line in lines(tuning, study):
            style = {"WARNING": "bold red", "Recommended": "bold"}.get(line.partition(":")[0], "")
            report.print_line(console, line, style=style)
        if summary_file is not None:
            write_json(summary_file, results(tuning, study))
        if picture_file is not None and study.watched is not None:
            with no_job_fails_by("the picture"):
                if write_text(picture_file, picture(study, study.watched), "the picture"):
                    report.print_line(console, f"The chart is in {picture_file}.")
        if report_file is not None:
            with no_job_fails_by("the report"):
                if write_text(report_file, page(tuning, study), "the report"):
                    report.print_line(console, f"The report is in {report_file}.")
        report.warn_of_lost_output(folder)
        signals.ignore_from_now_on()
    sys.exit(130 if study.interrupted else int(any(run.failed for run in study.runs)))
