"""One worker's row of the job's state, and the times of its phases for a trace."""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from platoon_base.shm.job_state import JobState, position_of
from platoon_base.shm.phases import PhaseClock
from platoon_base.system.own_files import write_whole
from platoon_base.system.process import resident_bytes
from platoon_base.system.text import to_bytes

_MEASURED_EVERY_S = 1.0


class ProgressRow:
    """Writes this worker's progress into shared memory; a call costs a few memory accesses."""

    def __init__(self, job_state: JobState, rank: int) -> None:
        self._job_state = job_state
        self._use(job_state.table[rank : rank + 1])
        self.clock = PhaseClock(self.row["phase_seconds"], self.row["phase_counts"])
        self._script_reports_epochs = self._script_counts = self._epoch_steps_known = False
        self._counted_for_it = 0
        self._measured = time.monotonic(), time.process_time()
        # The position of a deferred synchronization, and a function that tells whether it was made.
        self._awaited: tuple[tuple[int, int, int], Callable[[], bool]] | None = None

    def add(self, steps: int, epoch: int | None, loss: float | None) -> None:
        self.mark_made()
        if not steps and epoch is None and loss is None:
            if self._started[0]:
                self._updated[0] = time.monotonic()
            return
        self._touch()
        steps = int(steps)
        if steps and self._counted_for_it:  # The script counts these steps itself now.
            self._steps[0] -= min(steps, self._counted_for_it)
            self._counted_for_it = 0
        if epoch is not None:
            self._script_reports_epochs = True
            self._begin_epoch(epoch)
        if steps:
            self._steps[0] += steps
            self.clock.step(steps)
            self._script_counts = True
        if loss is not None:
            self.row["loss"] = loss

    def count_for_script(self, loss: float | None) -> None:
        """Count a step of a compiled function, until the script counts its steps itself."""
        self._touch()
        if not self._script_counts:
            self._counted_for_it += 1
            self._steps[0] += 1
            self.clock.step(1)
        if loss is not None:
            self.row["loss"] = loss

    def announce(self, epoch: int | None, limit: str | None, numbers: Mapping[str, int | None]) -> None:
        if epoch is not None and not self._script_reports_epochs:
            self._begin_epoch(epoch)
        self._epoch_steps_known = self._epoch_steps_known or numbers.get("epoch_steps") is not None
        for name, number in numbers.items():
            if number is not None:
                self.row[name] = number
        if limit is not None:
            self.row["limit"] = to_bytes(limit, self.row.dtype["limit"].itemsize)

    def _use(self, rows: Any) -> None:
        """Use these rows from now on; views of per-step values are ten times as fast as fields."""
        self._rows, self.row = rows, rows[0]
        views: list[Any] = [memoryview(rows[name]) for name in ("steps", "started", "updated")]
        self._steps, self._started, self._updated = views

    def _touch(self) -> None:
        now = time.monotonic()
        if self._started[0] == 0:
            self._started[0] = now
        self._updated[0] = now
        if now - self._measured[0] >= _MEASURED_EVERY_S:
            self._measure(now)

    def _measure(self, now: float) -> None:
        """Write the use of the processor since the latest measurement, and the memory."""
        (before, spent), spent_now = self._measured, time.process_time()
        self._measured = now, spent_now
        self.row["cpu_percent"] = 100 * (spent_now - spent) / (now - before)
        self.row["memory_bytes"] = resident_bytes()

    def _begin_epoch(self, epoch: int) -> None:
        row = self.row
        if epoch == row["epoch"]:
            return
        made = row["steps"] - row["steps_before_epoch"]
        if epoch == row["epoch"] + 1 and made and not self._epoch_steps_known:
            row["epoch_steps"] = made  # The next epoch will have as many.
        row["epoch"], row["steps_before_epoch"] = epoch, row["steps"]

    @property
    def steps(self) -> int:
        return int(self.row["steps"])

    @property
    def position(self) -> tuple[int, int, int]:
        return position_of(self.row)

    def count_sync(
        self,
        began: float,
        whole: bool,
        number: int = 0,
        position: tuple[int, int, int] | None = None,
        made: Callable[[], bool] | None = None,
    ) -> None:
        """Count a synchronization that began at ``began`` (`time.perf_counter`).

        ``whole`` is True if it covered every part of the center. The center then has this worker's
        steps up to ``position``, by default all so far. With ``made``, it has them once ``made()``
        returns True.
        """
        row = self.row
        awaited = made is not None and not made()
        self._awaited = (self.position, made) if awaited and made is not None else None
        row["syncs"] += 1
        row["round"] = number or row["round"]
        if whole and not awaited:
            JobState.mark_synced(row, position)
        row["sync_seconds"] += time.perf_counter() - began

    def count_copy(self) -> None:
        self.row["copies"] += 1

    def mark_made(self) -> None:
        """Record a deferred synchronization, if it has been made."""
        if self._awaited is not None:
            position, made = self._awaited
            if made():
                JobState.mark_synced(self.row, position)
                self._awaited = None

    def mark_all_synced(self) -> None:
        """Record that the center has this worker's values: all workers resume at its position."""
        self._awaited = None
        self._job_state.mark_all_synced(self.row)

    def mark_left(self) -> None:
        self.row["left"] = 1

    def close(self) -> None:
        """Detach from the job's shared memory; ``row`` is a copy afterwards."""
        try:
            self.clock.close()
        finally:
            self._use(self._rows.copy())


MOST_SPANS = 50_000


class Spans(msgspec.Struct):
    """The phases of a process: phase or `STEP`, begin and end (monotonic clock, seconds)."""

    rank: int
    spans: list[tuple[int, float, float]]


class SpanRecorder:
    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._rank, self._path = rank, Path(folder) / f"rank{rank}-{os.getpid()}.json"
        self._spans: collections.deque[tuple[int, float, float]] = collections.deque(maxlen=MOST_SPANS)

    def record(self, phase: int, began: float, ended: float) -> None:
        self._spans.append((phase, began, ended))

    def write(self) -> None:
        """Write the file; errors are ignored, so a full disk does not stop the training."""
        found = Spans(self._rank, list(self._spans))
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(found))
