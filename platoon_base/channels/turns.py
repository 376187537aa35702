"""One call at a time: of the threads of this process, and of the signal handlers that interrupt them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError

__all__ = ["Turns"]


class Turns:
    """Lets one call in at a time.

    Another thread waits for its turn, no longer than it may. A signal handler cannot wait for the call that it has
    interrupted, which goes on after it only, so what it calls is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = ""  # what the thread that has the lock does

    @contextlib.contextmanager
    def take(self, call: str, timeout_s: float) -> Iterator[float]:
        """Within the ``with`` block this thread alone is in one of the calls; gives the seconds that are left.

        Raises
        ------
        CollectiveTimeoutError
            If another thread was in one for ``timeout_s``.
        ConfigurationError
            If this thread is in one already.
        """
        left_s = timeout_s
        if not self._lock.acquire(blocking=False):
            left_s = self._wait(call, timeout_s)
        outermost = False
        try:
            if self._inside:
                raise ConfigurationError(
                    f"got {call} from a signal handler that has interrupted {self._inside} of the same thread, which "
                    "cannot go on meanwhile: in the handler call request_stop or set a flag, and make this call in the "
                    "training loop"
                )
            outermost, self._inside = True, call
            yield left_s
        finally:
            if outermost:
                self._inside = ""
                # As often as it was taken: Ctrl-C may once have come between `acquire` and `try`.
                with contextlib.suppress(RuntimeError):
                    while True:
                        self._lock.release()
            else:
                self._lock.release()

    def _wait(self, call: str, timeout_s: float) -> float:
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)):
            raise CollectiveTimeoutError(
                f"{call} waited {timeout_s:g} s for another thread of this process, which is in {self._inside}: make "
                "such calls from one thread, or give a longer timeout_s"
            )
        return max(deadline - time.monotonic(), 0.0)
