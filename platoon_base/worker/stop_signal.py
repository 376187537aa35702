"""The job's decision to stop, as one worker sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from platoon_base.shm.job_state import JobState
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
