"""The job's advisory lock."""

from __future__ import annotations

import time
from collections.abc import Callable

from platoon_base.errors import CollectiveTimeoutError
from platoon_base.system.process import awake

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
