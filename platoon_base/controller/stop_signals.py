"""SIGINT, SIGTERM and SIGHUP as a readable file descriptor: none interrupts the launcher, and each request counts."""

from __future__ import annotations

import os
import signal
import time
from types import TracebackType
from typing import Any

from platoon_base.system.process import readable

__all__ = ["StopSignals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `timeout` signals its child and then its group, systemd may send a hangup behind SIGTERM: that asks once, not twice.
_TOGETHER_S = 0.1


class StopSignals:
    """Within the ``with`` block these signals only make a file descriptor readable; use it in the main thread.

    A signal that this process ignores stays ignored, as under nohup. A signal that the parent process has left
    blocked is unblocked.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._came: list[tuple[signal.Signals, float]] = []  # and when

    def __enter__(self) -> StopSignals:
        self.fd, self._writable = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writable, False)
        caught = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._note) for number in caught}
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
        """Return the signals since the last call; if there are none, wait up to ``timeout_s`` for one.

        Those that came within a tenth of a second count as the first of them; it waits that long for others.
        """
        if not self._read(timeout_s):
            return []
        until = time.monotonic() + _TOGETHER_S
        while (left := until - time.monotonic()) > 0:
            self._read(left)
        came, self._came = self._came, []
        kept: list[tuple[signal.Signals, float]] = []
        for number, at in came:
            if not kept or at - kept[-1][1] > _TOGETHER_S:
                kept.append((number, at))
        return [number for number, _ in kept]

    def _note(self, number: int, _: Any) -> None:
        self._came.append((signal.Signals(number), time.monotonic()))

    def _read(self, timeout_s: float) -> bool:
        """Empty the file descriptor; return whether one of these signals made it readable."""
        return readable(self.fd, timeout_s) and any(number in _NUMBERS for number in os.read(self.fd, 64))

    def ignore_from_now_on(self) -> None:
        """Ignore these signals after the ``with`` block too, so that they cannot change the exit status."""
        for number in self._handlers:
            self._handlers[number] = signal.SIG_IGN
