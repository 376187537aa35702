"""Copies of workers' rows between the hosts of a job, so that each host sees all workers in its own shared memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base.multihost.messages import Rows
from platoon_base.shm.job_state import WORKER_LOCKS, JobState
from platoon_base.shm.mirrored_rows import MIRRORED, copied_rows, put_rows
from platoon_base.shm.segments import Segment

__all__ = ["Mirror", "Sender"]


class Mirror:
    """The rows and locks of workers of other hosts in the shared memory of this one.

    Parameters
    ----------
    job_state : JobState
    name : str
        Of its segment. A handle of this object holds the locks of workers of other hosts while they hold theirs.
    """

    def __init__(self, job_state: JobState, name: str) -> None:
        self.job_state = job_state
        self._holder = Segment.attach(name)
        self._held: set[int] = set()
        self._shift_s: dict[int, float] = {}  # by host: what its monotonic clock is behind this one's

    def put(self, host: int, rows: Rows) -> None:
        """Write rows that another host has sent."""
        shift_s = time.monotonic() - rows.sent_at
        # The least is the one with the shortest way.
        shift_s = self._shift_s[host] = min(shift_s, self._shift_s.get(host, shift_s))
        if rows.ranks:
            # The rows before the locks: a worker that leaves marks its row before it frees its lock.
            put_rows(self.job_state, rows.ranks, np.frombuffer(rows.rows, MIRRORED), shift_s)
            for rank, held in zip(rows.ranks, rows.held):
                self._hold(rank, bool(held))

    def shift_s(self, host: int) -> float:
        """Return what the monotonic clock of a host is behind this one's, in seconds; 0 if it is not known."""
        return self._shift_s.get(host, 0.0)

    def mark_lost(self, host: int, ranks: Iterable[int]) -> None:
        """Free the locks that are held for the workers of a lost host, and forget the offset of its clock."""
        self._shift_s.pop(host, None)
        for rank in ranks:
            self._hold(rank, False)

    def _hold(self, rank: int, held: bool) -> None:
        if held and rank not in self._held:
            self._holder.try_lock(WORKER_LOCKS + rank)
            self._held.add(rank)
        elif not held and rank in self._held:
            self._holder.unlock(WORKER_LOCKS + rank)
            self._held.discard(rank)

    def holds(self, rank: int) -> bool:
        """Return whether this object holds the lock of a worker of another host."""
        return rank in self._held

    def close(self) -> None:
        """Free all locks."""
        self._holder.close()


class Sender:
    """Finds what has changed in rows since they were sent to one host.

    Parameters
    ----------
    job_state : JobState
    is_held : callable
        ``is_held(rank)`` returns whether a worker holds its lock.
    """

    def __init__(self, job_state: JobState, is_held: Any) -> None:
        self._job_state = job_state
        self._is_held = is_held
        self._rows: dict[int, bytes] = {}
        self._held: dict[int, bool] = {}

    def changed(self, ranks: Sequence[int]) -> Rows:
        """Return the rows of those ranks that have changed, of workers that have joined."""
        held = {rank: self._is_held(rank) for rank in ranks}  # before the rows, see `Mirror.put`
        ranks = [rank for rank in ranks if held[rank] or rank in self._rows]
        if not ranks:
            return Rows(time.monotonic())
        sent_at = time.monotonic()
        rows = copied_rows(self._job_state, ranks)
        data = [row.tobytes() for row in rows]
        changed = [
            i for i, rank in enumerate(ranks) if self._held.get(rank) != held[rank] or self._rows.get(rank) != data[i]
        ]
        self._rows.update((ranks[i], data[i]) for i in changed)
        self._held.update((rank, held[rank]) for rank in ranks)
        return _rows(sent_at, [ranks[i] for i in changed], rows[changed], held)

    def newly_held(self, ranks: Iterable[int]) -> Rows:
        """Return the rows of the ranks that have taken their lock since the last call; cheap once all have it."""
        new = [rank for rank in ranks if not self._held.get(rank) and self._is_held(rank)]
        return self.changed(new) if new else Rows(time.monotonic())


def _rows(sent_at: float, ranks: list[int], rows: Any, held: Mapping[int, bool]) -> Rows:
    return Rows(sent_at, ranks, rows.tobytes(), bytes(held[rank] for rank in ranks))
