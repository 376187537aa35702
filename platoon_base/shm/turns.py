"""Turns: one worker at a time uses the center, in an order that is the same in each run.

A turn lasts for a whole exchange, whatever the stripes of the center. It needs two things: the kernel's lock of one
byte of the job's state, which also keeps the controller's checkpoints out, and the consent of a policy:

* `ByRank`: each worker has a clock, ``(meetings, rounds since, turns since)``. A worker has its turn when no other
  worker that takes part has an earlier ``(clock, rank)``. A meeting is a collective call: a worker that waits in one is
  ahead of those that have not come yet, so it keeps none of them waiting. A round is one that goes on without workers
  that wait in a meeting, which have fewer rounds to make: so it counts less.
* `Recording`: any order; each turn is appended to a file.
* `Replaying`: the order of such a file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.shm.job_state import JobState
from platoon_base.shm.turn_order import line_of
from platoon_base.system.awake import awake

__all__ = ["ByRank", "NoTurns", "Policy", "Recording", "Replaying", "Turns"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _YIELDS = 20e-6, 500e-6, 20
_STUCK_S = 10.0  # one that has been let go may get no processor for seconds
# A clock is one number: meetings in its upper half, below them rounds, where there are some, and turns.
_MEETING, _ROUND = 1 << 32, 1 << 12
_NO_TURN = contextlib.nullcontext()
_DO_INSTEAD = (
    "record the order of one run by `platoon launch --record-order FILE` and give it back by --replay-order FILE"
)


class NoTurns:
    """No turns: workers use the center whenever they come to it.

    Attributes
    ----------
    taken : bool
        Whether workers take turns.
    """

    taken = False

    def take(self, what: str, timeout_s: float, finish: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return _NO_TURN

    def begin(self, what: str, timeout_s: float) -> None:
        """Do nothing."""

    def end(self, what: str) -> None:
        """Do nothing."""

    def meet(self, every: bool = True) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Policy(Protocol):
    """Decides whose turn it is."""

    def awaited(self, what: str) -> int | None:
        """Return the rank that has to go before this worker; None if it is this worker's turn."""
        ...

    def text(self, rank: int) -> str:
        """Return why that rank is awaited, for a message."""
        ...

    def done(self, what: str) -> None:
        """Record the turn of this worker."""
        ...

    def over(self) -> str:
        """Return what is wrong with the turns of this worker, which takes no more; mostly empty."""
        ...


class Turns:
    """The turns of one worker.

    Parameters
    ----------
    job_state : JobState
    rank : int
    policy : Policy
    try_lock, unlock : callable
        The lock that the worker holds during its turn; the controller takes it to read the center.

    Attributes
    ----------
    taken : bool
        Whether workers take turns.
    """

    taken = True

    def __init__(
        self,
        job_state: JobState,
        rank: int,
        policy: Policy,
        try_lock: Callable[[], bool],
        unlock: Callable[[], None],
    ) -> None:
        self._job_state, self._rank, self._policy = job_state, rank, policy
        self._try_lock, self._unlock = try_lock, unlock
        self._depth = 0
        self._stuck: tuple[int, int, float] | None = None  # rank, call, and when it was first seen there

    @contextlib.contextmanager
    def take(self, what: str, timeout_s: float, finish: Callable[[], None]) -> Iterator[None]:
        """Have a turn for the ``with`` block and for ``finish``, which waits for what the block has queued."""
        self.begin(what, timeout_s)
        try:
            yield
            finish()
        finally:
            self.end(what)

    def begin(self, what: str, timeout_s: float) -> None:
        """Wait for this worker's turn; within a turn only count the call.

        Parameters
        ----------
        what : str
            What the worker does in its turn, such as ``"sync"``.
        timeout_s : float

        Raises
        ------
        CollectiveTimeoutError
            If the turn did not come in time.
        WorkerLostError
            If a worker that has to go first has died.
        """
        if not self._depth:
            self._await(what, timeout_s)
        self._depth += 1

    def end(self, what: str) -> None:
        """Undo one call of `begin`; undoing the last one ends the turn."""
        if self._depth != 1:
            self._depth = max(self._depth - 1, 0)
            return
        self._depth = 0
        try:
            self._policy.done(what)
        finally:
            self._unlock()

    def meet(self, every: bool = True) -> None:
        """Count a collective call that this worker is about to wait in: of ``every`` worker, or a round."""
        row, unit = self._job_state.table[self._rank], _MEETING if every else _ROUND
        row["turn_clock"] = (int(row["turn_clock"]) // unit + 1) * unit

    def close(self) -> None:
        """Log an error if turns of this worker are left that it did not take."""
        problem = self._policy.over()
        if problem and not self._job_state.stopping:
            log.error("rank %d: %s", self._rank, problem)

    def _await(self, what: str, timeout_s: float) -> None:
        deadline, pause, tries = awake() + timeout_s, _FIRST_PAUSE_S, 0
        self._stuck, ordered = None, True
        while (first := self._first(what) if ordered else None) is not None or not self._try_lock():
            now, waits = awake(), f"rank {self._rank} waited for its turn ({what})"
            if first is not None and self._is_stuck(first, now):
                if self._job_state.stopping:  # an interrupted worker saves, or ends; the order is over
                    ordered = False
                    continue
                call = self._job_state.read_text(first, "waiting_in")
                raise ConfigurationError(
                    f"deadlock: {waits}: {self._policy.text(first)}. That rank waits in {call!r} meanwhile, for this "
                    "rank too"
                )
            if now > deadline:
                why = self._policy.text(first) if first is not None else "another process holds the lock of the turns"
                raise CollectiveTimeoutError(
                    f"{waits} for {timeout_s:g} s: {why}. Look into the log of that rank, or give a longer timeout_s"
                )
            tries += 1
            time.sleep(0.0 if tries < _YIELDS else pause)
            pause = pause if tries < _YIELDS else min(2 * pause, _LONGEST_PAUSE_S)

    def _first(self, what: str) -> int | None:
        """Return whom the policy awaits; nobody if that one is lost and the job ends: an interrupted worker saves."""
        try:
            return self._policy.awaited(what)
        except WorkerLostError:
            if not self._job_state.stopping:
                raise
            return None

    def _is_stuck(self, rank: int, now: float) -> bool:
        """Return whether a worker has been in the same collective call for `_STUCK_S`; its count is odd inside."""
        count = int(self._job_state.table[rank]["waits"])
        if count % 2 == 0:
            self._stuck = None
        elif self._stuck is None or self._stuck[:2] != (rank, count):
            self._stuck = rank, count, now
        else:
            return now - self._stuck[2] > _STUCK_S
        return False


def _why_gone(job_state: JobState, rank: int) -> str:
    """Return how a worker's process has ended, if it did not leave in order."""
    return "" if job_state.table[rank]["left"] else job_state.read_text(rank, "ending")


class ByRank:
    """Workers take their turns in the order of their ranks.

    Parameters
    ----------
    job_state : JobState
    rank, size : int
    """

    def __init__(self, job_state: JobState, rank: int, size: int) -> None:
        self._job_state, self._rank = job_state, rank
        self._lower = np.arange(size) < rank

    def awaited(self, what: str) -> int | None:
        """Return the lowest rank with an earlier clock; a worker that has left has none."""
        size, table = len(self._lower), self._job_state.table
        clocks = table["turn_clock"][:size]
        mine = clocks[self._rank]
        behind = ((clocks < mine) | ((clocks == mine) & self._lower)) & (table["left"][:size] == 0)
        if not behind.any():
            return None
        first = int(np.flatnonzero(behind)[0])
        if cause := _why_gone(self._job_state, first):
            raise WorkerLostError(
                f"rank {first} has its turn before this one and is lost ({cause}): start the job again, with --resume "
                "if it keeps checkpoints"
            )
        return first

    def text(self, rank: int) -> str:
        """Return how far that rank and this one are."""
        rows = [self._job_state.table[each] for each in (rank, self._rank)]
        made, own = ((int(row["syncs"]), int(row["turn_clock"]) // _MEETING) for row in rows)
        return (
            f"it is that of rank {rank}, which has synchronized {made[0]} times and made {made[1]} collective calls, "
            f"and this rank {own[0]} times and {own[1]} calls. With --deterministic workers synchronize in the order "
            f"of their ranks, equally often between two collective calls; if yours cannot, {_DO_INSTEAD}"
        )

    def done(self, what: str) -> None:
        """Advance this worker's clock."""
        self._job_state.table[self._rank]["turn_clock"] += 1

    def over(self) -> str:
        """Return nothing: a worker may make any number of exchanges."""
        return ""


class Recording:
    """Workers take their turns in any order, which is appended to a file.

    Parameters
    ----------
    path : path
        Whose header is there.
    rank : int
    """

    def __init__(self, path: str | os.PathLike[str], rank: int) -> None:
        self._rank = rank
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def awaited(self, what: str) -> int | None:
        """Return None: any order will do."""
        return None

    def text(self, rank: int) -> str:
        """Return nothing: no rank is awaited."""
        return ""

    def done(self, what: str) -> None:
        """Append this turn."""
        os.write(self._fd, line_of(self._rank, what))  # this worker has the lock

    def over(self) -> str:
        """Close the file; nothing can be wrong."""
        os.close(self._fd)
        return ""


class Replaying:
    """Workers take their turns in a recorded order.

    Parameters
    ----------
    job_state : JobState
    rank : int
    entries : sequence of (int, str)
        The rank of each turn, and what it did in it.
    path : path
        For messages.
    """

    def __init__(
        self, job_state: JobState, rank: int, entries: Sequence[tuple[int, str]], path: str | os.PathLike[str]
    ) -> None:
        self._job_state, self._rank, self._entries, self._path = job_state, rank, entries, path

    def awaited(self, what: str) -> int | None:
        """Return whose turn it is by the record, if it is another's; raise if this run cannot follow the record."""
        number = self._job_state.turn
        if number >= len(self._entries):
            raise ConfigurationError(
                f"{self._path} has {number} turns, all of them taken, and rank {self._rank} is to make another one "
                f"({what}): {self._differs()}"
            )
        rank, recorded = self._entries[number]
        if rank == self._rank:
            if recorded != what:
                raise ConfigurationError(
                    f"turn {number} of {self._path} is that of rank {rank} to make {recorded!r}, and it makes "
                    f"{what!r}: {self._differs()}"
                )
            return None
        row: Any = self._job_state.table[rank]
        if cause := _why_gone(self._job_state, rank):
            raise WorkerLostError(f"turn {number} of {self._path} is that of rank {rank}, which is lost ({cause})")
        if row["left"]:
            raise ConfigurationError(
                f"turn {number} of {self._path} is that of rank {rank}, which has left the job: {self._differs()}"
            )
        return rank

    def text(self, rank: int) -> str:
        """Return the turn that is awaited."""
        number = self._job_state.turn
        return f"turn {number} of {self._path} is that of rank {rank}: {self._differs()}"

    def _differs(self) -> str:
        return (
            "this run is not the recorded one. Run the same script with the same arguments, data and versions, or "
            "record it anew"
        )

    def done(self, what: str) -> None:
        """Pass on to the next turn."""
        self._job_state.turn += 1

    def over(self) -> str:
        """Return what the record has for this worker, beyond what it did."""
        left = [what for rank, what in self._entries[self._job_state.turn :] if rank == self._rank]
        if not left:
            return ""
        return f"{self._path} has {len(left)} more turns of rank {self._rank}, first {left[0]!r}: {self._differs()}"
