"""Liveness of the other workers of a job, their progress and latest call, read from shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from platoon_base.errors import LEAVE_TOGETHER
from platoon_base.shm.job_state import JobState
from platoon_base.system.process import awake
from platoon_base.timeouts import LIVENESS_S, SHORT_POLL_S, timeout

_STUCK_S = 1.0


class Liveness(Protocol):
    """Liveness of the other workers of a job, which ends waits for missing workers early."""

    def why_absent(self, ranks: Sequence[int]) -> str:
        """Return why one of these ranks will never join this worker's call; empty if all may."""
        ...

    def moved(self, ranks: Sequence[int]) -> float:
        """Return the earliest of these workers' latest progress, by the monotonic clock, in s."""
        ...

    def gone(self, rank: int) -> bool:
        """Return whether a worker has left or died; False before it joins."""
        ...

    def incarnation(self, rank: int) -> int:
        """Return how many processes a rank has had; a restarted one lacks their memory."""
        ...

    def died(self, rank: int) -> bool:
        """Return whether a worker ended without leaving in order."""
        ...

    def latest_call(self, rank: int) -> Call:
        """Return the latest collective call on devices that a worker has begun."""
        ...

    def call_counter(self, rank: int) -> Any:
        """Return a view of the field with that call, of shape (1,), int64."""
        ...

    def left_flag(self, rank: int) -> Any:
        """Return a view of the flag of an orderly leave, of shape (1,), int64."""
        ...

    def locks(self, ranks: Sequence[int]) -> tuple[int, list[int]]:
        """Return a file descriptor and the bytes these workers lock (F_OFD) while participating."""
        ...


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


class JobLiveness:
    """`Liveness` from the job's state and file locks."""

    def __init__(
        self,
        job_state: JobState,
        alive: Callable[[int], bool],
        locks: Callable[[Sequence[int]], tuple[int, list[int]]],
        rank: int,
    ) -> None:
        # A child forked by C code may hold the lock longer than the worker lives: ``ending``,
        # written by the controller, counts too. `why_absent` also records that this ``rank`` waits.
        self.locks = locks
        self._rank = rank
        self._progress_watch = ProgressWatch(job_state)
        self._job_state = job_state
        self._alive = alive
        self._calls = CallWatch(job_state)

    def why_absent(self, ranks: Sequence[int]) -> str:
        self._progress_watch.poll()
        self._job_state.row(self._rank)["waited_at"] = time.monotonic()
        for rank in ranks:
            # "left" is set before the lock is free.
            if self._job_state.row(rank)["left"] or not self._lives(rank):
                return self._exit_reason(rank)
            if self._calls.seconds(rank) > _STUCK_S:
                return (
                    f"rank {rank} waits in {self._job_state.read_text(rank, 'waiting_in')!r} instead, for this rank "
                    f"too: all ranks must make the same calls in the same order. {LEAVE_TOGETHER}"
                )
        return ""

    def moved(self, ranks: Sequence[int]) -> float:
        return min(map(self._progress_watch.last, ranks))

    def gone(self, rank: int) -> bool:
        row = self._job_state.row(rank)
        return bool(row["ending"]) or (bool(row["left"]) and not self._alive(rank))

    def incarnation(self, rank: int) -> int:
        return int(self._job_state.row(rank)["lives"])

    def died(self, rank: int) -> bool:
        return not self._lives(rank) and not self._job_state.row(rank)["left"]

    def latest_call(self, rank: int) -> Call:
        return Call.of(int(self.call_counter(rank)[0]))

    def call_counter(self, rank: int) -> Any:
        return self._job_state.collectives(rank)

    def left_flag(self, rank: int) -> Any:
        return self._job_state.left(rank)

    def _lives(self, rank: int) -> bool:
        return self._alive(rank) and not self._job_state.row(rank)["ending"]

    def _exit_reason(self, rank: int) -> str:
        deadline = time.monotonic() + timeout("cause")
        while not (cause := self._job_state.read_text(rank, "ending")) and time.monotonic() < deadline:
            time.sleep(SHORT_POLL_S)
        cause = f" ({cause})" if cause else ""
        if self._job_state.row(rank)["left"]:
            return f"rank {rank} has left the job{cause}. {LEAVE_TOGETHER}"
        return f"rank {rank} is lost{cause}"


_SIGNATURE_BITS = 24


class Call(NamedTuple):
    """Latest collective call of a rank, with a signature of its kind, array size and dtype."""

    number: int  # Counted from 1; 0 before the first.
    signature: int
    # Seconds of the monotonic clock; infinite on other ranks, where they are unknown.
    begun: float = float("inf")
    deadline: float = float("inf")

    @property
    def word(self) -> int:
        """Number and signature in 63 bits, which are written and read atomically."""
        return self.number << _SIGNATURE_BITS | self.signature

    @classmethod
    def of(cls, word: int) -> Call:
        return cls(word >> _SIGNATURE_BITS, word & (1 << _SIGNATURE_BITS) - 1)


def sign(kind: int, typecode: int, size: int) -> int:
    """Return a signature for a call on an array, the same in every process."""
    # The hash of integers is not randomized.
    return hash((kind, typecode, size)) & (1 << _SIGNATURE_BITS) - 1


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


def stalled_text(moved: float) -> str:
    """Describe how long a worker has made no progress, from the time of `ProgressWatch.last`."""
    seconds = awake() - moved
    return f"no progress for {seconds:.0f} s" if seconds < float("inf") else "no progress so far"
