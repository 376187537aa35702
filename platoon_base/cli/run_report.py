"""The option ``--report`` of `platoon launch`: a page about the job, and its curves as CSV."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path

import click

from platoon_base.cli.charts import NO_CHARTS, has_charts
from platoon_base.cli.commands.arguments import result_file
from platoon_base.cli.json_file import write_text
from platoon_base.cli.observers import Tracker
from platoon_base.cli.run_page import About, page
from platoon_base.cli.run_recorder import SHOWN, RunRecorder
from platoon_base.cli.story_file import known_story
from platoon_base.controller.outcome import Result, Snapshot

__all__ = ["TRACKER", "RunReport"]

_option = click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    callback=result_file,
    help="At the end write an HTML page with curves, the time of each worker by phase, and a "
    "diagnosis. The curves are also written as CSV beside it. The charts need "
    "platoon-plugins[report].",
)


class RunReport:
    """Records a job, and writes its page and CSV files at the end."""

    name = "the report"

    def __init__(self, path: Path, title: str, folder: Path) -> None:
        self._path, self._title, self._folder = path, title, folder
        self.opening = "" if has_charts() else NO_CHARTS
        self.recorder = RunRecorder()

    def take(self, snapshot: Snapshot) -> None:
        self.recorder.take(snapshot, time.monotonic())

    def close(self, result: Result | None = None) -> None:
        """Write the page and the curves; report on standard error which file cannot be written."""
        self.recorder.end()
        story = known_story(self._folder, "the report")
        about = About(self._title, str(self._folder), result, story)
        write_text(self._path, page(self.recorder, about), "the report")
        write_text(self._beside("workers"), workers_as_csv(self.recorder), "the workers' curves")
        write_text(self._beside("values"), values_as_csv(self.recorder), "the reported values")

    def _beside(self, what: str) -> Path:
        return self._path.with_name(f"{self._path.stem}_{what}.csv")


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


TRACKER = Tracker(_option, "report_file", lambda path, job: RunReport(path, job.command, job.folder))
