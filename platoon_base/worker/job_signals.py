"""The job's decision to stop, and its advisory lock, as one worker sees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from platoon_base.errors import CollectiveTimeoutError
from platoon_base.shm.job_state import JobState
from platoon_base.system.process import awake
from platoon_base.timeouts import LIVENESS_S

log = logging.getLogger(__name__)


class StopSignal:
    """Whether the job is to stop: its stop flag is set, or its controller is lost."""

    def __init__(self, job_state: JobState, rank: int, controller_alive: Callable[[], bool]) -> None:
        self._job_state = job_state
        self._rank = rank
        self._controller_alive = controller_alive
        self._next_poll_at = 0.0
        self._closed = False

    def is_set(self) -> bool:
        if self._job_state.stopping:
            return True
        now = time.monotonic()
        if now < self._next_poll_at:
            return False
        self._next_poll_at = now + LIVENESS_S
        # The order matters: `close` runs before the memory is unmapped.
        if self._controller_alive() or self._closed:
            return False
        log.warning("rank %d: the controller of this job has ended; stopping", self._rank)
        self._job_state.stop("the controller has ended")
        return True

    @property
    def reason(self) -> str:
        return self._job_state.stop_reason

    def close(self) -> None:
        """Stop checking the controller; `is_set` keeps its last value."""
        self._closed = True


_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 5e-3


class AdvisoryLock:
    """A reentrant lock; ``try_acquire`` returns whether this worker holds the lock now."""

    def __init__(self, try_acquire: Callable[[], bool], release: Callable[[], None]) -> None:
        self._try_acquire = try_acquire
        self._release = release
        self._times = 0

    def acquire(self, timeout_s: float) -> None:
        # Count before the wait, so that a signal handler cannot release this call's lock.
        self._times += 1
        try:
            self._wait(timeout_s)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Undo one call of `acquire`; undoing the last one releases the lock."""
        self._times = max(self._times - 1, 0)
        if not self._times:
            self._release()

    def _wait(self, timeout_s: float) -> None:
        pause, deadline = _SHORTEST_PAUSE_S, awake() + timeout_s
        while not self._try_acquire():
            if awake() >= deadline:
                raise CollectiveTimeoutError(
                    f"another worker held the lock for {timeout_s:g} s; call unlock() in a finally clause"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
