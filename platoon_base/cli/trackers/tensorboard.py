"""Event files for TensorBoard: curves of each worker and of the reported values."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from platoon_base.cli.observers import Option, TrackedRun
from platoon_base.system.limits import require_room

_TIME_IN_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.(\d{9})\.")


class Tracker:
    """Writes one run for each worker, and ``center`` for the whole job."""

    needs = ("tensorboardX", "pip install 'platoon-plugins[tensorboard]', or pip install tensorboardX")

    def __init__(self, name: str, folder: Path, own: Path | None = None) -> None:
        self._folder = folder / "tensorboard" if own is None else own
        self.place = str(self._folder) if own is None else ""
        self._writers: dict[str, Any] = {}
        self._written: dict[str, int] = {}  # Latest step of each run.

    def configure(self, settings: Mapping[str, float | str]) -> None:
        from tensorboardX.summary import text

        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._write("center", [text("settings", f"| setting | value |\n|---|---|\n{rows}")], None)

    def log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        from tensorboardX.summary import scalar

        run = "center" if worker is None else f"worker{worker}"
        self._write(run, [scalar(*each) for each in values.items()], step)

    def close(self, succeeded: bool) -> None:
        with contextlib.ExitStack() as stack:  # Closes all files, also after an error of one.
            for writer in self._writers.values():
                stack.callback(writer.close)

    def _write(self, run: str, summaries: list[Any], step: int | None) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        if run not in self._writers:
            self._writers[run] = _new_file(self._folder / run)
        events = []
        if step is not None:
            if step < self._written.get(run, math.inf):  # This is the first event of a file, or steps are repeated.
                events.append(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
            self._written[run] = step
        events += [Event(step=step, summary=each) for each in summaries]
        for event in events:
            event.wall_time = time.time()
            self._writers[run].write(event.SerializeToString())
        self._writers[run].flush()


def _new_file(folder: Path) -> Any:
    """Create an event file that sorts after those in the folder, as TensorBoard reads them."""
    # SummaryWriter blocks after its thread failed; EventsWriter names files by whole seconds.
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    # Clocks of hosts may differ. The name has a random end: a known name may be a link.
    folder.mkdir(parents=True, exist_ok=True)
    names = (_TIME_IN_NAME.match(path.name) for path in folder.iterdir())
    last = max((int(found[1] + found[2]) for found in names if found), default=0)
    time_ns = max(time.time_ns(), last + 1)
    seconds, nanoseconds = divmod(time_ns, 10**9)
    writer = RecordWriter(str(folder / f"events.out.tfevents.{seconds}.{nanoseconds:09d}.{os.urandom(8).hex()}"))
    writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return writer


def _folder(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Raise if the option is given and tensorboardX is not installed."""
    from platoon_base.cli.trackers import require_package

    if path is not None:
        require_package(*Tracker.needs, f"--tensorboard {path}")
        require_room(path, "event files")
    return path


OPTION = Option(
    click.option(
        "--tensorboard",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        callback=_folder,
        help="Write the loss, rate, epoch and share of synchronization of each worker, and the "
        "reported values, to DIR for TensorBoard. Use a different DIR for each run. It needs "
        "tensorboardX.",
    ),
    "tensorboard",
    lambda path, job: TrackedRun("TensorBoard", lambda name, folder: Tracker(name, folder, path), job),
)
