"""One worker's row of the job's state: how far it is, and how often it exchanged values with the center."""

from __future__ import annotations

import time
from typing import Any

from platoon_base.shm.job_state import JobState

__all__ = ["ProgressRow"]


class ProgressRow:
    """Writes this worker's progress where others see it; a call costs a few memory accesses.

    Parameters
    ----------
    job_state : JobState
    rank : int
        Of this worker.

    Attributes
    ----------
    row : structured scalar
        On the memory of the job; a copy after `close`.
    """

    def __init__(self, job_state: JobState, rank: int) -> None:
        self._job_state = job_state
        self.row: Any = job_state.row(rank)

    def add(self, steps: int, epoch: int | None, loss: float | None) -> None:
        """Take note of steps that were made; see `Worker.progress`."""
        now, row = time.monotonic(), self.row
        if row["started"] == 0:
            row["started"] = now
        row["updated"] = now
        if epoch is not None and epoch != row["epoch"]:
            row["epoch"], row["steps_before_epoch"] = epoch, row["steps"]
        row["steps"] += steps
        if loss is not None:
            row["loss"] = loss

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return int(self.row["steps"])

    def count_sync(self, began: float, whole: bool) -> None:
        """Count a synchronization.

        Parameters
        ----------
        began : float
            When it began, by `time.perf_counter`.
        whole : bool
            Whether every part of the center was synchronized.
        """
        row = self.row
        row["syncs"] += 1
        if whole:
            JobState.mark_synced(row)
        row["sync_seconds"] += time.perf_counter() - began

    def count_copy(self) -> None:
        """Count a copy of the center to the parameters, or of the parameters to the center."""
        self.row["copies"] += 1

    def mark_all_synced(self) -> None:
        """Take note that the center has this worker's values: all workers go on from its position."""
        self._job_state.mark_all_synced(self.row)

    def mark_left(self) -> None:
        """Say goodbye to those who watch."""
        self.row["left"] = 1

    def close(self) -> None:
        """Leave the memory of the job."""
        self.row = self.row.copy()
