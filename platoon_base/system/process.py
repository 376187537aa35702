"""Processes: system calls that Python lacks, and a clock that stops with the process.

A stopped process (SIGSTOP, a frozen container or machine) cannot receive anything: that time must
not count as silence of peers, or toward its own deadlines. A wait must call `awake`, the clock, at
least every `MAX_GAP_S` seconds; a longer gap is not counted.
"""

from __future__ import annotations

import ctypes
import os
import select
import time

MAX_GAP_S = 2.0

_seen, _stopped_s = time.monotonic(), 0.0


def awake() -> float:
    """Return seconds of a monotonic clock; only differences within one wait have a meaning."""
    global _seen, _stopped_s
    now = time.monotonic()
    gap, _seen = now - _seen, now
    if gap > MAX_GAP_S:
        _stopped_s += gap
    return now - _stopped_s


_PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # linux/prctl.h


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


def die_with(parent: int, number: int) -> None:
    """Let the kernel signal this process when its parent dies; forked ones do not inherit it."""
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # The parent is already dead.
        os._exit(1)


def is_subreaper() -> bool:
    """Return whether orphaned descendants of this process become its children."""
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return bool(value.value)


def pid_namespace() -> int:
    """Return the number of this process's PID namespace; 0 if unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def readable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Return whether a descriptor can be read; a pidfd can if its process has ended."""
    # `select.select` refuses descriptors above 1,023.
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else 1e3 * timeout_s))
