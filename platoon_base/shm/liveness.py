"""Whether the other workers of a job are alive, have left, died or wait elsewhere; read from shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from platoon_base.shm.calls import Call
from platoon_base.shm.job_state import JobState
from platoon_base.shm.progress_watch import ProgressWatch

__all__ = ["JobLiveness", "Liveness"]

_CAUSE_TIMEOUT_S = 1.5  # the controller learns how a process ended shortly after its locks are free
_STUCK_S = 1.0


class Liveness(Protocol):
    """The liveness of the other workers of a job, by which waits for missing workers end early."""

    def why_absent(self, ranks: Sequence[int]) -> str:
        """Return why one of these ranks will never make the call that this worker waits in; empty if all may."""
        ...

    def moved(self, ranks: Sequence[int]) -> float:
        """Return the earliest of these workers' times of latest progress, in seconds of the monotonic clock."""
        ...

    def gone(self, rank: int) -> bool:
        """Return whether this worker has left or died; False for a worker that has yet to join."""
        ...

    def incarnation(self, rank: int) -> int:
        """Return how many processes this rank has had: a restarted one lacks the memory of the earlier ones."""
        ...

    def died(self, rank: int) -> bool:
        """Return whether this worker ended without leaving in order."""
        ...

    def latest_call(self, rank: int) -> Call:
        """Return the latest collective call on devices that this worker has begun."""
        ...

    def call_counter(self, rank: int) -> Any:
        """Return a view of the field with that call: an array of shape (1,), int64."""
        ...

    def left_flag(self, rank: int) -> Any:
        """Return a view of the flag that the worker sets when it leaves in order: an array of shape (1,), int64."""
        ...

    def locks(self, ranks: Sequence[int]) -> tuple[int, list[int]]:
        """Return a file descriptor, and the bytes of it that these workers lock (F_OFD) while they take part."""
        ...


class JobLiveness:
    """`Liveness` as the job's state and the kernel's locks show it.

    Parameters
    ----------
    job_state : JobState
    alive : callable
        ``alive(rank)`` returns whether that worker still holds its lock. A child that C code has forked may hold it for
        longer than the worker lives, so what the controller writes when a process has ended counts too.
    locks : callable
        See `Liveness.locks`.
    rank : int
        Of this worker, which is seen to wait when it asks why others are absent.
    """

    def __init__(
        self,
        job_state: JobState,
        alive: Callable[[int], bool],
        locks: Callable[[Sequence[int]], tuple[int, list[int]]],
        rank: int,
    ) -> None:
        self.locks = locks
        self._rank = rank
        self._progress_watch = ProgressWatch(job_state)
        self._job_state = job_state
        self._alive = alive
        self._waiting: dict[int, tuple[int, float]] = {}

    def why_absent(self, ranks: Sequence[int]) -> str:
        """Return why one of these ranks will never make the call that this worker waits in; empty if all may."""
        self._progress_watch.poll()
        self._job_state.row(self._rank)["waited_at"] = time.monotonic()
        for rank in ranks:
            if self._job_state.row(rank)["left"] or not self._lives(rank):  # "left" is set before the lock is free
                return self._exit_reason(rank)
            if self._is_stuck(rank):
                return (
                    f"rank {rank} waits in {self._job_state.read_text(rank, 'waiting_in')!r} instead, for this rank "
                    "too: all ranks must make the same calls in the same order"
                )
        return ""

    def moved(self, ranks: Sequence[int]) -> float:
        """Return the earliest of these workers' times of latest progress, in seconds of the monotonic clock."""
        return min(map(self._progress_watch.last, ranks))

    def gone(self, rank: int) -> bool:
        """Return whether this worker has left or died; False for a worker that has yet to join."""
        row = self._job_state.row(rank)
        return bool(row["ending"]) or (bool(row["left"]) and not self._alive(rank))

    def incarnation(self, rank: int) -> int:
        """Return how many processes this rank has had: a restarted one lacks the memory of the earlier ones."""
        return int(self._job_state.row(rank)["lives"])

    def died(self, rank: int) -> bool:
        """Return whether this worker ended without leaving in order."""
        return not self._lives(rank) and not self._job_state.row(rank)["left"]

    def latest_call(self, rank: int) -> Call:
        """Return the latest collective call on devices that this worker has begun."""
        return Call.of(int(self.call_counter(rank)[0]))

    def call_counter(self, rank: int) -> Any:
        """Return a view of the field with that call: an array of shape (1,), int64."""
        return self._job_state.collectives(rank)

    def left_flag(self, rank: int) -> Any:
        """Return a view of the flag that the worker sets when it leaves in order: an array of shape (1,), int64."""
        return self._job_state.left(rank)

    def _lives(self, rank: int) -> bool:
        """Return whether a worker's process lives, as far as is known."""
        return self._alive(rank) and not self._job_state.row(rank)["ending"]

    def _is_stuck(self, rank: int) -> bool:
        """Return whether a worker has been in the same wait of the control plane for long; its count is odd inside."""
        count = int(self._job_state.row(rank)["waits"])
        before = self._waiting.get(rank)
        if count % 2 == 0:
            self._waiting.pop(rank, None)
        elif before is None or before[0] != count:
            self._waiting[rank] = count, time.monotonic()
        else:
            return time.monotonic() - before[1] > _STUCK_S
        return False

    def _exit_reason(self, rank: int) -> str:
        deadline = time.monotonic() + _CAUSE_TIMEOUT_S
        while not (cause := self._job_state.read_text(rank, "ending")) and time.monotonic() < deadline:
            time.sleep(0.01)
        verb = "has left the job" if self._job_state.row(rank)["left"] else "is lost"
        return f"rank {rank} {verb}{f' ({cause})' if cause else ''}"
