"""One call at a time: of the threads of this process, and of the signal handlers that interrupt them."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError

__all__ = ["CallLock"]


class CallLock:
    """Lets one call in at a time.

    Another thread waits for its turn, no longer than it may. A signal handler cannot wait for the call that it has
    interrupted, which goes on after it only, so what it calls is refused.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.call = ""  # the latest
        self.inside: weakref.ref[_Entry] | None = None
        self.interrupted = False  # the lock may have been taken more often than it will be freed

    def take(self, call: str, timeout_s: float) -> _Entry:
        """Within the ``with`` block this thread alone is in one of the calls; gives the seconds that are left.

        Raises
        ------
        CollectiveTimeoutError
            If another thread was in one for ``timeout_s``.
        ConfigurationError
            If this thread is in one already.
        """
        return _Entry(self, call, timeout_s)

    def release(self) -> None:
        """Free the lock as often as this thread has taken it.

        A call of a signal handler, which came before the turn began or after it ended, may have freed it already.
        """
        try:
            self.lock.release()
            while self.interrupted:
                self.lock.release()
        except RuntimeError:  # it is free
            self.interrupted = False

    def abandon(self, inside: weakref.ref[_Entry]) -> None:
        """Free the lock of a turn that has gone without its end; the ``with`` block was cut off there."""
        if self.inside is inside:
            self.inside = None
            self.interrupted = True
            self.release()


class _Entry:
    """The context manager of one call. As a class it takes half the time of a generator.

    Ctrl-C may come between any two instructions of these methods too. Either they set ``interrupted``, and the end of
    the next turn frees the lock. Or ``inside`` still names this object, and `CallLock.abandon` frees the lock once
    the object is gone.
    """

    __slots__ = ("__weakref__", "_call", "_calls", "_timeout_s")

    def __init__(self, calls: CallLock, call: str, timeout_s: float) -> None:
        self._calls = calls
        self._call = call
        self._timeout_s = timeout_s

    def __enter__(self) -> float:
        calls, left_s = self._calls, self._timeout_s
        try:
            if not calls.lock.acquire(blocking=False):
                left_s = self._wait()
            if calls.inside is not None:
                calls.lock.release()
                raise ConfigurationError(
                    f"got {self._call} from a signal handler that has interrupted {calls.call} of the same thread, "
                    "which cannot go on meanwhile: in the handler call request_stop or set a flag, and make this call "
                    "in the training loop"
                )
            calls.call = self._call
            calls.inside = weakref.ref(self, calls.abandon)
        except BaseException:
            calls.interrupted = True
            raise
        return left_s

    def __exit__(self, *exc_info: Any) -> None:
        calls = self._calls
        try:
            calls.inside = None
            calls.release()
        except BaseException:
            calls.interrupted = True
            raise

    def _wait(self) -> float:
        deadline = time.monotonic() + self._timeout_s
        if not self._calls.lock.acquire(timeout=min(max(self._timeout_s, 0.0), threading.TIMEOUT_MAX)):
            raise CollectiveTimeoutError(
                f"{self._call} waited {self._timeout_s:g} s for another thread of this process, which is in "
                f"{self._calls.call}: make such calls from one thread, or give a longer timeout_s"
            )
        return max(deadline - time.monotonic(), 0.0)
