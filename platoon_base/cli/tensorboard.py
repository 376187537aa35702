"""Event files for TensorBoard: curves of each worker and of the reported values."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import click

from platoon_base.cli.observers import Tracker
from platoon_base.cli.recent import Recent
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.errors import ConfigurationError
from platoon_base.system.limits import require_room

__all__ = ["TRACKER", "EventFiles"]

_EVERY_S = 2.0
_FLUSH_S = 5.0
_TIME_IN_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.(\d{9})\.")


def _folder(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Raise if the option is given and tensorboardX is not installed."""
    if path is None:
        return None
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigurationError(
            f"got --tensorboard {path}, which needs tensorboardX, and it is not installed: pip "
            "install 'platoon-plugins[tensorboard]', or pip install tensorboardX"
        )
    require_room(path, "event files")
    return path


_option = click.option(
    "--tensorboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    callback=_folder,
    help="Write the loss, rate, epoch and share of synchronization of each worker, and the "
    "reported values, to DIR for TensorBoard. Use a different DIR for each run. It needs "
    "tensorboardX.",
)


class EventFiles:
    """Writes snapshots of a job as scalars: one run for each worker, and ``center``.

    ``center`` has the reported values over the largest number of mini-batches of a worker: a mean
    would fall when a worker joins or is restarted.
    """

    name, opening = "TensorBoard", ""

    def __init__(self, folder: Path, every_s: float = _EVERY_S) -> None:
        self._folder = folder
        self._every_s = every_s
        self._next = self._next_flush = 0.0
        self._recent = Recent()
        self._writers: dict[str, Any] = {}
        self._steps: dict[int, int] = {}
        self._written: dict[str, int] = {}  # the latest step of each run
        self._reported: dict[str, float | str] = {}

    def close(self, result: Result | None = None) -> None:
        try:
            if self._recent.snapshot is not None:
                self._write_workers(self._recent.snapshot)
        finally:
            with contextlib.ExitStack() as stack:  # Closes all files, also after an error of one.
                for writer in self._writers.values():
                    stack.callback(writer.close)

    def take(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        self._recent.take(snapshot, now)
        if now >= self._next:
            self._next = now + self._every_s
            self._write_workers(snapshot)
        self._write_reported(snapshot)
        if now >= self._next_flush:
            self._next_flush = now + _FLUSH_S
            for writer in self._writers.values():
                writer.flush()

    def _write_workers(self, snapshot: Snapshot) -> None:
        for rank, progress in snapshot.progress.items():
            if progress.steps == self._steps.get(rank, 0):
                continue
            self._steps[rank] = progress.steps
            scalars = {
                "loss": progress.loss,
                "epoch": float(progress.epoch),
                "batches_per_second": self._recent.rate(rank),
                "share_of_synchronization": self._recent.sync_share(rank),
            }
            self._write(f"worker{rank}", scalars, progress.steps)

    def _write_reported(self, snapshot: Snapshot) -> None:
        known = self._reported
        new = {name: value for name, value in snapshot.reported.items() if known.get(name) != value}
        numbers = {name: float(value) for name, value in new.items() if isinstance(value, (int, float))}
        self._reported = dict(snapshot.reported)
        self._write("center", numbers, max((progress.steps for progress in snapshot.progress.values()), default=0))

    def _write(self, run: str, scalars: dict[str, float], step: int) -> None:
        if not scalars:
            return
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        if run not in self._writers:
            self._writers[run] = _new_file(self._folder / run)
        events = []
        if step < self._written.get(run, math.inf):  # the first event of a file, or repeated steps
            events.append(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        self._written[run] = step
        events += [Event(step=step, summary=scalar(*each)) for each in scalars.items() if not math.isnan(each[1])]
        for event in events:
            event.wall_time = time.time()
            self._writers[run].write(event.SerializeToString())


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


TRACKER = Tracker(_option, "tensorboard", lambda folder, job: EventFiles(folder))
