"""Turns: one worker at a time uses the center, in an order that is the same in each run.

A turn lasts for a whole exchange. It needs a file lock on one byte of the job's state, which also
excludes the controller's checkpoints, and the earliest clock. Each worker's clock is (collective
calls, rounds since, turns since). A worker has its turn when no other participant has an earlier
(clock, rank). A worker that waits in a collective call is ahead of those that have not made it: it
blocks none of them. A round counts less than a collective call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.shm.job_state import JobState
from platoon_base.shm.liveness import CallWatch
from platoon_base.system.process import awake

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _YIELDS = 20e-6, 500e-6, 20
_STUCK_S = 10.0  # A released worker may get no processor for seconds.
# A clock is one number: collective calls in its upper half, then rounds and turns.
_MEETING, _ROUND = 1 << 32, 1 << 12
_NO_TURN = contextlib.nullcontext()


class NoTurns:
    """No turns: workers use the center at any time."""

    taken = False

    def take(self, what: str, timeout_s: float, finish: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        return _NO_TURN

    def begin(self, what: str, timeout_s: float) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def meet(self, every: bool = True) -> None:
        """Do nothing."""


class Turns:
    """The turns of one worker; the controller acquires the same lock to read the center."""

    taken = True

    def __init__(
        self,
        job_state: JobState,
        rank: int,
        size: int,
        try_lock: Callable[[], bool],
        unlock: Callable[[], None],
    ) -> None:
        self._job_state, self._rank = job_state, rank
        self._lower = np.arange(size) < rank
        self._try_lock, self._unlock = try_lock, unlock
        self._depth = 0
        self._calls = CallWatch(job_state)

    @contextlib.contextmanager
    def take(self, what: str, timeout_s: float, finish: Callable[[], None]) -> Iterator[None]:
        """Have a turn for the ``with`` block and for ``finish``, which waits for queued work."""
        self.begin(what, timeout_s)
        try:
            yield
            finish()
        finally:
            self.end()

    def begin(self, what: str, timeout_s: float) -> None:
        """Wait for this worker's turn; within a turn, only count the call."""
        if not self._depth:
            self._await(what, timeout_s)
        self._depth += 1

    def end(self) -> None:
        """Undo one call of `begin`; the last one ends the turn."""
        if self._depth != 1:
            self._depth = max(self._depth - 1, 0)
            return
        self._depth = 0
        try:
            self._job_state.table[self._rank]["turn_clock"] += 1
        finally:
            self._unlock()

    def meet(self, every: bool = True) -> None:
        """Count a collective call before its wait: of ``every`` worker, or a round."""
        row, unit = self._job_state.table[self._rank], _MEETING if every else _ROUND
        row["turn_clock"] = (int(row["turn_clock"]) // unit + 1) * unit

    def _await(self, what: str, timeout_s: float) -> None:
        deadline, pause, tries, ordered = awake() + timeout_s, _FIRST_PAUSE_S, 0, True
        while (first := self._first() if ordered else None) is not None or not self._try_lock():
            now, waits = awake(), f"rank {self._rank} waited for its turn ({what})"
            if first is not None and self._calls.seconds(first) > _STUCK_S:
                if self._job_state.stopping:  # An interrupted worker saves or ends in any order.
                    ordered = False
                    continue
                call = self._job_state.read_text(first, "waiting_in")
                raise ConfigurationError(
                    f"deadlock: {waits}: {self._text(first)}. That rank waits in {call!r} meanwhile, for this rank too"
                )
            if now > deadline:
                why = self._text(first) if first is not None else "another process holds the lock of the turns"
                raise CollectiveTimeoutError(
                    f"{waits} for {timeout_s:g} s: {why}. Read the log of that rank, or pass a longer timeout_s"
                )
            tries += 1
            time.sleep(0.0 if tries < _YIELDS else pause)
            pause = pause if tries < _YIELDS else min(2 * pause, _LONGEST_PAUSE_S)

    def _first(self) -> int | None:
        """Return the lowest rank with an earlier clock, or None if it is this worker's turn."""
        size, table = len(self._lower), self._job_state.table
        clocks = table["turn_clock"][:size]
        mine = clocks[self._rank]
        behind = ((clocks < mine) | ((clocks == mine) & self._lower)) & (table["left"][:size] == 0)
        if not behind.any():
            return None
        first = int(np.flatnonzero(behind)[0])
        cause = "" if table[first]["left"] else self._job_state.read_text(first, "ending")
        # While the job stops, an interrupted worker saves without waiting for lost ones.
        if cause and self._job_state.stopping:
            return None
        if cause:
            raise WorkerLostError(
                f"rank {first} has its turn before this one and is lost ({cause}): start the job "
                "again, with --resume if it has checkpoints"
            )
        return first

    def _text(self, rank: int) -> str:
        rows = [self._job_state.table[each] for each in (rank, self._rank)]
        made, own = ((int(row["syncs"]), int(row["turn_clock"]) // _MEETING) for row in rows)
        return (
            f"it is that of rank {rank}, which has synchronized {made[0]} times and made {made[1]} collective calls, "
            f"and this rank {own[0]} times and {own[1]} calls. With --deterministic workers synchronize in the order "
            "of their ranks, equally often between two collective calls; if yours cannot, leave the option out"
        )
