"""The job's advisory lock, which counts how often one worker has taken it."""

from __future__ import annotations

import time
from collections.abc import Callable

from platoon_base.errors import CollectiveTimeoutError

__all__ = ["AdvisoryLock"]

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 5e-3


class AdvisoryLock:
    """A lock that one worker of the job has at a time, and may take several times.

    Parameters
    ----------
    try_acquire : callable
        Takes the lock, unless another worker has it, and returns whether this worker has it now.
    release : callable
        Frees it.
    """

    def __init__(self, try_acquire: Callable[[], bool], release: Callable[[], None]) -> None:
        self._try_acquire = try_acquire
        self._release = release
        self._times = 0

    def acquire(self, timeout_s: float) -> None:
        """Wait for the lock and take it; see `Worker.lock`."""
        self._times += 1  # first: or a signal handler that takes it and frees it would free this call's too
        try:
            self._wait(timeout_s)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Undo one call of `acquire`; the last one frees the lock."""
        self._times = max(self._times - 1, 0)
        if not self._times:
            self._release()

    def _wait(self, timeout_s: float) -> None:
        pause, deadline = _SHORTEST_PAUSE_S, time.monotonic() + timeout_s
        while not self._try_acquire():
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"another worker held the lock for {timeout_s:g} s; unlock() in a finally clause"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
