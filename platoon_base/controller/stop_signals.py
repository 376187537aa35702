"""Signals to the launcher as a readable file descriptor: to end the job, or for its workers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from platoon_base.system.process import readable

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM)
# Batch systems send these ahead of a time limit, for scripts that handle them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# `timeout` signals its child, then its group; systemd may send SIGHUP after SIGTERM. Count one.
_TOGETHER_S = 0.1


class StopSignals:
    """Within the ``with`` block signals make ``fd`` readable; use it in the main thread only.

    A signal that this process ignores stays ignored, as under nohup. A signal that the parent
    process has left blocked is unblocked.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._came: list[tuple[signal.Signals, float]] = []  # Requests to end, with their times.
        self._for_workers: list[signal.Signals] = []

    def __enter__(self) -> StopSignals:
        self.fd, self._writable = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writable, False)
        caught = [number for number in _ENDING + PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._note) for number in caught}
        self._wakeup = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._writable)

    def take(self, timeout_s: float = 0.0) -> list[signal.Signals]:
        """Return the requests to end the job since the last call; wait up to ``timeout_s`` for one.

        Requests within a tenth of a second count as one; after the first it waits that long.
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

    def take_for_workers(self) -> list[signal.Signals]:
        """Return the signals of `PASSED_ON` that `take` has found since the last call."""
        found, self._for_workers = self._for_workers, []
        return found

    def _note(self, number: int, _: Any) -> None:
        if number in PASSED_ON:
            self._for_workers.append(signal.Signals(number))
        else:
            self._came.append((signal.Signals(number), time.monotonic()))

    def _read(self, timeout_s: float) -> bool:
        """Empty the file descriptor; return whether it held a request to end the job."""
        return readable(self.fd, timeout_s) and any(number in _ENDING for number in os.read(self.fd, 64))

    def ignore_from_now_on(self) -> None:
        """Ignore the signals after the ``with`` block too: they must not change the exit status."""
        for number in self._handlers:
            self._handlers[number] = signal.SIG_IGN
