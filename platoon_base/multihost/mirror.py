"""Copies of workers' rows: each host has all workers in its own shared memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base.multihost.messages import Rows
from platoon_base.shm.job_state import MIRRORED, WORKER_LOCKS, JobState, copied_rows, put_rows
from platoon_base.shm.segments import Segment


class Mirror:
    """The rows and locks of workers of other hosts in the shared memory of this one."""

    def __init__(self, job_state: JobState, name: str) -> None:
        # This object's handle of the segment holds the locks that workers of other hosts hold.
        self.job_state = job_state
        self._holder = Segment.attach(name)
        self._held: set[int] = set()
        # Seconds that the monotonic clock of a host is behind this one's.
        self._shift_s: dict[int, float] = {}

    def put(self, host: int, rows: Rows) -> None:
        shift_s = time.monotonic() - rows.sent_at
        # The smallest difference had the shortest delay.
        shift_s = self._shift_s[host] = min(shift_s, self._shift_s.get(host, shift_s))
        if rows.ranks:
            # Write rows before locks: a worker that leaves marks its row before it releases its
            # lock.
            put_rows(self.job_state, rows.ranks, np.frombuffer(rows.rows, MIRRORED), shift_s)
            for rank, held in zip(rows.ranks, rows.held):
                self._hold(rank, bool(held))

    def shift_s(self, host: int) -> float:
        """Return the seconds that a host's monotonic clock is behind this one's; 0 if unknown."""
        return self._shift_s.get(host, 0.0)

    def mark_lost(self, host: int, ranks: Iterable[int]) -> None:
        """Release the locks of workers of a lost host, and drop the offset of its clock."""
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
        return rank in self._held

    def close(self) -> None:
        self._holder.close()


class Sender:
    """Finds the changes in rows since they were sent to one host."""

    def __init__(self, job_state: JobState, is_held: Any) -> None:
        self._job_state = job_state
        self._is_held = is_held
        self._rows: dict[int, bytes] = {}
        self._held: dict[int, bool] = {}

    def changed(self, ranks: Sequence[int]) -> Rows:
        """Return the rows of these ranks that have changed, of workers that have joined."""
        # Read locks before rows, see `Mirror.put`.
        held = {rank: self._is_held(rank) for rank in ranks}
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
        """Return the rows of ranks that acquired their lock since the last call."""
        new = [rank for rank in ranks if not self._held.get(rank) and self._is_held(rank)]
        return self.changed(new) if new else Rows(time.monotonic())


def _rows(sent_at: float, ranks: list[int], rows: Any, held: Mapping[int, bool]) -> Rows:
    return Rows(sent_at, ranks, rows.tobytes(), bytes(held[rank] for rank in ranks))
