"""The option ``--report`` of `platoon launch`: a page about the job, and its curves as CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

import click

from platoon_base.cli.charts import NO_CHARTS, has_charts
from platoon_base.cli.commands.arguments import result_file
from platoon_base.cli.json_file import no_job_fails_by, write_text
from platoon_base.cli.run_page import About, page
from platoon_base.cli.run_recorder import SHOWN, RunRecorder
from platoon_base.cli.story_file import known_story
from platoon_base.controller.outcome import Result, Snapshot

__all__ = ["RunReport", "chart_notes", "report_option", "reporting"]

report_option = click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    callback=result_file,
    help="At the end write an HTML page with curves, the time of each worker by phase, and a "
    "diagnosis. The curves are also written as CSV beside it. The charts need "
    "platoon-plugins[report].",
)


def chart_notes(report_file: Path | None) -> list[str]:
    """Return what to say before a job whose report will have no charts."""
    return [NO_CHARTS] if report_file is not None and not has_charts() else []


class RunReport:
    """Records a job, and writes its page and CSV files at the end.

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
        """Write the page and the curves; report on standard error which file cannot be written."""
        self.recorder.end()
        story = known_story(self._folder, "the report")
        about = About(self._title, str(self._folder), self.result, story)
        write_text(self._path, page(self.recorder, about), "the report")
        write_text(self._beside("workers"), workers_as_csv(self.recorder), "the workers' curves")
        write_text(self._beside("values"), values_as_csv(self.recorder), "the reported values")

    def _beside(self, what: str) -> Path:
        return self._path.with_name(f"{self._path.stem}_{what}.csv")


@contextlib.contextmanager
def reporting(report: RunReport | None) -> Iterator[None]:
    """Write the report at the end of the block, also after an error; log an error in the report."""
    try:
        yield
    finally:
        if report is not None:
            with no_job_fails_by("the report"):
                report.write()


def workers_as_csv(recorder: RunRecorder) -> str:
    """Return the curves of all workers as CSV, with a line for each moment and worker."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "rank", "epoch", "steps", "loss", *(f"{name}_seconds" for name in SHOWN)])
    for rank in sorted(recorder.lanes):
        for at, epoch, steps, loss, shares in recorder.lanes[rank].points:
            times = [f"{seconds:.6g}" for seconds in shares]
            rows.writerow([f"{at:.3f}", rank, epoch, steps, "" if math.isnan(loss) else f"{loss:.9g}", *times])
    return file.getvalue()


def values_as_csv(recorder: RunRecorder) -> str:
    """Return the reported values as CSV, with a line for each."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["seconds", "mean_steps", "name", "value"])
    for name, values in recorder.values.items():
        rows.writerows([f"{each.at:.3f}", f"{each.steps:.1f}", name, f"{each.value:.9g}"] for each in values)
    return file.getvalue()
