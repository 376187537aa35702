"""When each worker last made progress: a step, an epoch, a synchronization, or a call."""

from __future__ import annotations

import time

import numpy as np

from platoon_base.shm.job_state import JobState
from platoon_base.system.awake import awake
from platoon_base.timeouts import LIVENESS_S

__all__ = ["CallWatch", "ProgressWatch", "stalled_text"]


class ProgressWatch:
    """Detects progress: compares the workers' counters from one poll to the next."""

    def __init__(self, job_state: JobState) -> None:
        self._job_state = job_state
        self._signs = job_state.signs()
        self._moved = np.full(self._signs.shape[1], -np.inf)
        self._next_poll_at = -np.inf

    def poll(self, now: float | None = None) -> None:
        """Record which workers have made progress; call it about every second."""
        now = awake() if now is None else now
        if now < self._next_poll_at:
            return
        self._next_poll_at = now + LIVENESS_S
        signs = self._job_state.signs()
        self._moved[(signs != self._signs).any(axis=0)] = now
        self._signs = signs

    def last(self, rank: int) -> float:
        """Return when a worker last made progress, by `awake`; -inf if it never did."""
        self.poll()
        updated = float(self._job_state.row(rank)["updated"])
        return float(max(self._moved[rank], updated + awake() - time.monotonic() if updated else -np.inf))


class CallWatch:
    """Measures how long workers have been in one collective call, from one poll to the next."""

    def __init__(self, job_state: JobState) -> None:
        self._job_state = job_state
        self._seen: dict[int, tuple[int, float]] = {}

    def seconds(self, rank: int) -> float:
        count, now = int(self._job_state.row(rank)["waits"]), awake()
        if rank not in self._seen or self._seen[rank][0] != count:
            self._seen[rank] = count, now
        return now - self._seen[rank][1] if count % 2 else 0.0  # The count is odd within a call.


def stalled_text(moved: float) -> str:
    """Describe how long a worker has made no progress, from the time of `ProgressWatch.last`."""
    seconds = awake() - moved
    return f"no progress for {seconds:.0f} s" if seconds < float("inf") else "no progress so far"
