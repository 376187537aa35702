"""SIGINT, SIGTERM and SIGHUP as something to read, so that none is lost and none ends the launcher half-way."""

from __future__ import annotations

import os
import signal
from types import TracebackType
from typing import Any

from platoon_base.controller.descriptors import readable

__all__ = ["StopSignals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Within the ``with`` block these signals do nothing but become readable; only the main thread can do this.

    One that this process ignores stays ignored: nohup starts its command so, and means it. One that the parent has left
    blocked is let through.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.fd, self._writable = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writable, False)
        caught = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in caught}
        self._wakeup = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._writable)

    def take(self, timeout_s: float = 0.0) -> list[signal.Signals]:
        """Return the signals that have come since the last call; if there is none, wait for one for so long."""
        if not readable(self.fd, timeout_s):
            return []
        return [signal.Signals(number) for number in os.read(self.fd, 64) if number in _NUMBERS]

    def ignore_from_now_on(self) -> None:
        """Let nothing of them come between the last word and the exit status of this process."""
        for number in self._handlers:
            self._handlers[number] = signal.SIG_IGN
