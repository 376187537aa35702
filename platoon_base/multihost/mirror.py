"""The rows of workers on all hosts: each host has all workers in its own shared memory, and sends changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from platoon_base.coordination.roster import Roster
from platoon_base.multihost.messages import JobState, Rows
from platoon_base.shm.job_state import MIRRORED, WORKER_LOCKS, as_words, copied_rows, put_rows
from platoon_base.shm.job_state import JobState as SharedState
from platoon_base.shm.segments import Segment


class Mirror:
    """The rows and locks of workers of other hosts in the shared memory of this one."""

    def __init__(self, job_state: SharedState, name: str) -> None:
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


class _Changes:
    """Finds changes in the rows of workers that have joined, and numbers the polls that find some.

    ``is_held(rank)`` returns whether a worker holds its lock.
    """

    def __init__(self, job_state: SharedState, is_held: Callable[[int], bool]) -> None:
        self._job_state, self._is_held = job_state, is_held
        self._number = 0
        count = job_state.rows
        self._rows = np.zeros(count, MIRRORED)
        self._words: Any = as_words(self._rows)
        self._held = np.zeros(count, bool)
        self._seen = np.zeros(count, bool)  # Ranks that held their lock at any poll.
        self._found = np.zeros(count, "i8")  # The poll that found a rank changed.

    def _take(self, ranks: Sequence[int]) -> None:
        """Copy the rows of joined workers among these ranks, and mark those that have changed."""
        # Read locks before rows, see `Mirror.put`.
        held = np.fromiter(map(self._is_held, ranks), bool, len(ranks))
        rows = copied_rows(self._job_state, ranks)
        at = np.asarray(ranks, "i8")
        self._seen[at] |= held
        words = as_words(rows)
        changed = ((words != self._words[at]).any(axis=1) | (held != self._held[at])) & self._seen[at]
        self._held[at] = held
        if changed.any():
            self._number += 1
            self._words[at[changed]] = words[changed]
            self._found[at[changed]] = self._number

    def _rows_of(self, ranks: Any) -> Rows:
        held = self._held[ranks].astype("u1").tobytes()
        return Rows(time.monotonic(), ranks.tolist(), self._rows[ranks].tobytes(), held)


class Sender(_Changes):
    """Finds the changes in rows since they were sent to one host."""

    def changed(self, ranks: Sequence[int]) -> Rows:
        """Return the rows of these ranks that have changed, of workers that have joined."""
        before = self._number
        self._take(ranks)
        return self._rows_of(np.flatnonzero(self._found > before))

    def newly_held(self, ranks: Iterable[int]) -> Rows:
        """Return the rows of ranks that acquired their lock since the last call."""
        new = [rank for rank in ranks if not self._held[rank] and self._is_held(rank)]
        return self.changed(new) if new else Rows(time.monotonic())


@dataclass
class _Sent:
    """The number of the latest poll and the state that one host has been sent."""

    number: int = 0
    num_live: tuple[int, int] = (-1, -1)
    state: tuple[str, int, bool] | None = None


class StateChanges(_Changes):
    """Finds changes in the rows and the state of a job, for the hosts that mirror it.

    A host is sent the ranks of other hosts that changed since the last poll that it was sent.
    """

    def __init__(self, job_state: SharedState, roster: Roster, is_held: Callable[[int], bool]) -> None:
        super().__init__(job_state, is_held)
        self._roster = roster
        self._sent: dict[int, _Sent] = {}
        # The reason to stop, the leader, and whether several workers share parameters.
        self._state = ("", 0, False)
        self._endings = np.zeros(job_state.rows, "S512")
        self._ended = np.zeros(job_state.rows, "i8")  # The poll that found the ending changed.
        self._free: list[int] = []  # Ranks with a free lock at the latest poll.
        self._known = 0  # Number of ranks of the roster that have been polled.

    @property
    def found(self) -> tuple[object, ...]:
        """The version of the state; equal versions mean that there is nothing new to send."""
        return self._number, self._state, self._roster.changes

    def poll(self) -> None:
        self._collect_job_state()
        ranks = list(self._roster)
        self._take(ranks)
        self._free = [rank for rank in ranks if not self._held[rank]]
        self._known = len(ranks)
        endings = self._job_state.table["ending"][: len(ranks)].copy()
        changed = np.flatnonzero(endings != self._endings[: len(ranks)])
        if len(changed):
            self._number += 1
            self._endings[changed], self._ended[changed] = endings[changed], self._number

    def collect_joined(self) -> None:
        """Find only changes that answers may depend on: acquired locks, and the job's state."""
        self._collect_job_state()
        if len(self._roster) != self._known:
            self._free += list(self._roster)[self._known :]
            self._known = len(self._roster)
        joined = [rank for rank in self._free if self._is_held(rank)]
        if joined:
            self._take(joined)
            self._free = [rank for rank in self._free if not self._held[rank]]

    def _collect_job_state(self) -> None:
        shared = self._job_state
        stop = shared.stop_reason or ("stop" if shared.stopping else "")
        self._state = (stop, shared.leader, shared.shared_by_several)

    def since_sent(self, host: int) -> JobState | None:
        """Return the changes that a host has not been sent, or None, and mark them as sent."""
        sent = self._sent.setdefault(host, _Sent())
        num_live = (self._roster.num_live_on(host), self._roster.num_live)
        same = num_live == sent.num_live and self._state == sent.state
        if same and sent.number == self._number:
            return None
        found = np.flatnonzero(self._found > sent.number)
        ranks = found[[self._roster[rank].host_index != host for rank in found]]
        ended = [
            (rank, int(self._job_state.row(rank)["lives"]), bytes(self._endings[rank]).decode(errors="replace"))
            for rank in np.flatnonzero(self._ended > sent.number).tolist()
        ]
        sent.state, sent.num_live, sent.number = self._state, num_live, self._number
        if same and not len(ranks) and not ended:
            return None
        stop, leader, several = self._state
        return JobState(stop, num_live, leader, several, ended, self._rows_of(ranks))

    def forget(self, host: int) -> None:
        self._sent.pop(host, None)
