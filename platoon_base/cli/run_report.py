"""The option ``--report`` of `platoon launch`: a page about the job, and its curves as CSV and PNG."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from platoon_base.cli.commands.arguments import result_file
from platoon_base.cli.json_file import no_job_fails_by, write_bytes, write_text
from platoon_base.cli.png import as_png, has_png, require_png
from platoon_base.cli.run_page import About, charts, page
from platoon_base.cli.run_recorder import SHOWN, RunRecorder
from platoon_base.cli.story_file import known_story
from platoon_base.cli.svg import sheet
from platoon_base.cli.value_names import is_validation
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.errors import ConfigurationError

__all__ = ["RunReport", "report_options", "reporting"]

_OPTIONS = (
    click.option(
        "--report",
        "report_file",
        type=click.Path(path_type=Path),
        metavar="FILE.html",
        callback=result_file,
        help="At the end write a page with curves, the time of each worker by phase, and a verdict in words; beside it "
        "the curves as CSV, and as PNG where platoon-plugins[plots] is installed.",
    ),
    click.option(
        "--report-png",
        is_flag=True,
        help="Refuse to start where the PNGs of --report cannot be drawn, instead of leaving them out.",
    ),
)


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets ``report_file``."""

    @functools.wraps(command)
    def with_report(*args: Any, report_file: Path | None, report_png: bool, **kwargs: Any) -> Any:
        if report_png:
            if report_file is None:
                raise ConfigurationError("got --report-png without --report: add --report FILE.html")
            require_png("--report-png")
        return command(*args, report_file=report_file, **kwargs)

    wrapped: Callable[..., Any] = with_report
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


class RunReport:
    """Records a job, and writes the files about it at the end.

    Parameters
    ----------
    path : Path
        Of the page.
    title : str
        The script with its arguments.
    folder : Path
        Of the logs.

    Attributes
    ----------
    recorder : RunRecorder
    result : Result or None
        Set it before `write`, if the job could be run to its end.
    """

    def __init__(self, path: Path, title: str, folder: Path) -> None:
        self._path, self._title, self._folder = path, title, folder
        self.recorder = RunRecorder()
        self.result: Result | None = None

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Record a snapshot; ``now`` is in seconds of the monotonic clock."""
        self.recorder.take(snapshot, now)

    def write(self) -> None:
        """Write the page and the curves; what cannot be written is reported on standard error.

        PNGs are written where their libraries are installed.
        """
        self.recorder.end()
        about = About(self._title, str(self._folder), self.result, known_story(self._folder, "the report"))
        write_text(self._path, page(self.recorder, about), "the report")
        write_text(self._beside("workers"), workers_as_csv(self.recorder), "the workers' curves")
        write_text(self._beside("values"), values_as_csv(self.recorder), "the reported values")
        if has_png():
            with no_job_fails_by("the curves as PNG"):
                self._write_pictures()

    def _write_pictures(self) -> None:
        """Write the charts of the page; one with values of both, such as loss and val_loss, is in both files."""
        drawn = charts(self.recorder)
        for what, of_validation in (("training", False), ("validation", True)):
            own = [each for each in drawn if any(is_validation(name) == of_validation for name in each.names)]
            write_bytes(self._beside(what, "png"), as_png(sheet(own)), f"the curves of {what}")

    def _beside(self, what: str, kind: str = "csv") -> Path:
        return self._path.with_name(f"{self._path.stem}_{what}.{kind}")


@contextlib.contextmanager
def reporting(report: RunReport | None) -> Iterator[None]:
    """Write the report at the end of the ``with`` block, also after an error; one in the report costs the report."""
    try:
        yield
    finally:
        if report is not None:
            with no_job_fails_by("the report"):
                report.write()


def workers_as_csv(recorder: RunRecorder) -> str:
    """Return the curves of all workers as CSV: a line for each moment and worker."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "rank", "epoch", "steps", "loss", *(f"{name}_seconds" for name in SHOWN)])
    for rank in sorted(recorder.lanes):
        for at, epoch, steps, loss, shares in recorder.lanes[rank].points:
            times = [f"{seconds:.6g}" for seconds in shares]
            rows.writerow([f"{at:.3f}", rank, epoch, steps, "" if math.isnan(loss) else f"{loss:.9g}", *times])
    return file.getvalue()


def values_as_csv(recorder: RunRecorder) -> str:
    """Return the reported values as CSV: a line for each value, those of training and of validation."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "mean_steps", "name", "value"])
    for name, values in recorder.values.items():
        rows.writerows([f"{each.at:.3f}", f"{each.steps:.1f}", name, f"{each.value:.9g}"] for each in values)
    return file.getvalue()
