"""Watch one worker: a child, another process of this host, or the holder of a lock.

A zombie counts as ended, even if its parent never collects it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple, Union

from platoon_base.errors import PlatoonError
from platoon_base.system.limits import no_descriptor_text
from platoon_base.system.process import catches, readable
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)


def exit_status(returncode: int) -> int:
    """Convert a return code of `subprocess` to the exit status that a shell shows."""
    return returncode if returncode >= 0 else 128 - returncode


def described(status: int) -> str:
    """Return an exit status in words, such as ``killed by SIGTERM``."""
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(status - 128).name}"
    return f"exit status {status}"


class Ended(NamedTuple):
    """The exit status that a shell shows; ``why`` explains one that is not the process's own."""

    status: int
    why: str = ""


class ForeignProcess:
    """A process of this host that is no child; its unknown status counts as 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.fd: int | None = os.pidfd_open(pid)

    def poll(self) -> Ended | None:
        return Ended(0) if self.fd is None or readable(self.fd) else None

    def offer(self, number: signal.Signals) -> bool:
        """Signal this process only, if it has a handler for the signal; return whether it has."""
        if self.fd is None or readable(self.fd) or not catches(self._pid, number):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.fd, number)
        return True

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.fd is not None:
                signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


class ChildProcess(ForeignProcess):
    """A child that leads its process group; the group is killed when the child ends.

    If it cannot be watched, it is killed and PlatoonError is raised. ``popen`` gets its return
    code.
    """

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self._popen = popen
        try:
            super().__init__(pid)
        except OSError as exc:
            self.fd = None
            self.signal(signal.SIGKILL)
            self._collect(0)
            why = no_descriptor_text(exc) or "this needs Linux 5.3, and a container that allows the call"
            raise PlatoonError(
                f"process {pid} was started but cannot be watched, so it was killed (pidfd_open: {exc.strerror}): {why}"
            ) from exc

    def poll(self) -> Ended | None:
        """Return how it ended, after killing the rest of its process group; None while it runs."""
        if self.fd is None or not readable(self.fd):
            return None
        self.signal(signal.SIGKILL)  # Signal before the process id can be reused.
        return self._collect(os.WNOHANG)

    def _collect(self, options: int) -> Ended | None:
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            ended = Ended(1, "exit status unknown: other code in the launcher's process has collected it")
        else:
            if pid == 0:
                return None  # A debugger may trace it.
            ended = Ended(exit_status(os.waitstatus_to_exitcode(status)))
        if self._popen is not None:
            self._popen.returncode = ended.status  # Avoids a warning of its destructor.
        return ended

    def signal(self, number: signal.Signals) -> None:
        """Signal it and its descendants, except those in other process groups."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)


class LockHolder:
    """A worker whose process id is unknown here; it is watched by its lock and never signalled."""

    fd: int | None = None

    def __init__(self, holds_lock: Callable[[], bool], has_left: Callable[[], bool]) -> None:
        self._holds_lock = holds_lock
        self._has_left = has_left
        self._deadline: float | None = time.monotonic() + timeout("appear")

    def poll(self) -> Ended | None:
        """Return status 0 once it has released its lock, or has not acquired it in time."""
        if self._holds_lock():
            self._deadline = None
            return None
        is_coming = self._deadline is not None and time.monotonic() < self._deadline and not self._has_left()
        return None if is_coming else Ended(0)

    def offer(self, number: signal.Signals) -> bool:
        return False

    def signal(self, number: signal.Signals) -> None:
        """Do nothing, since its process is unknown here."""

    def close(self) -> None:
        """Do nothing."""


Watched = Union[ForeignProcess, LockHolder]
