"""One call at a time: for the threads of this process and for signal handlers."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError


class CallLock:
    """Admits one call at a time.

    Another thread waits, within its timeout. A signal handler cannot wait for the call that it has
    interrupted, so its own call raises.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.call = ""  # The latest call.
        self.inside: weakref.ref[_Entry] | None = None
        # The lock may have been acquired more often than it will be released.
        self.interrupted = False

    def take(self, call: str, timeout_s: float) -> _Entry:
        """Enter a call in a ``with`` block, which yields the remaining seconds.

        Raises `CollectiveTimeoutError` if another thread was in a call for ``timeout_s``, and
        `ConfigurationError` if this thread is already in one.
        """
        return _Entry(self, call, timeout_s)

    def release(self) -> None:
        """Release the lock as often as this thread has acquired it."""
        # A call of a signal handler, before the entry or after its end, may have released it
        # already.
        try:
            self.lock.release()
            while self.interrupted:
                self.lock.release()
        except RuntimeError:  # The lock is free.
            self.interrupted = False

    def abandon(self, inside: weakref.ref[_Entry]) -> None:
        """Release the lock of an entry that was destroyed without its end."""
        if self.inside is inside:
            self.inside = None
            self.interrupted = True
            self.release()


class _Entry:
    """The context manager of one call. As a class it takes half the time of a generator.

    KeyboardInterrupt may arrive between any two instructions of these methods. Either they set
    ``interrupted``, and the next exit releases the lock. Or ``inside`` still refers to this object,
    and `CallLock.abandon` releases the lock when the object is destroyed.
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
                    f"got {self._call} from a signal handler that has interrupted {calls.call} in "
                    "the same thread, which cannot continue meanwhile: in the handler call "
                    "request_stop or set a flag, and make this call in the training loop"
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
                f"{self._call} waited {self._timeout_s:g} s for another thread of this process, "
                f"which is in {self._calls.call}: make such calls from one thread, or pass a "
                "longer timeout_s"
            )
        return max(deadline - time.monotonic(), 0.0)
