"""Processes: system calls that Python lacks, signals, and a clock that stops with the process.

A stopped process (SIGSTOP, a frozen container or machine) cannot receive anything: that time must
not count as silence of peers, or toward its own deadlines. A wait must call `awake`, the clock, at
least every `MAX_GAP_S` seconds; a longer gap is not counted.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

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


def resident_bytes() -> int:
    """Return the size of this process's memory in RAM; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
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


def accept_interrupts() -> None:
    """Reset SIGINT and SIGTERM if they are ignored, as in background commands of a shell."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def keep_interrupts() -> None:
    """Raise KeyboardInterrupt again if Python has dropped it, as in finalizers."""
    # Otherwise a worker would continue, and be killed later without having saved.
    sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)


def _unraisable(plain: Any, unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
        # threading.Thread takes locks that the main thread may hold here.
        _thread.start_new_thread(_interrupt_again, ())
    else:
        plain(unraisable)


def _interrupt_again() -> None:
    """Interrupt the main thread once it has left `_unraisable`, which drops exceptions too."""
    while _is_within(sys._current_frames().get(threading.main_thread().ident or 0)):
        time.sleep(0.01)
    _thread.interrupt_main()


def _is_within(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _unraisable.__code__:
            return True
        frame = frame.f_back
    return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal, or blocks it for `signal.sigwait`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


@contextlib.contextmanager
def default_sigchld() -> Iterator[None]:
    """Reset an inherited SIG_IGN for SIGCHLD (main thread only): it hides exit statuses."""
    try:
        before = signal.getsignal(signal.SIGCHLD)
        changed = before is signal.SIG_IGN
        if changed:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError:  # This is not the main thread.
        changed = False
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
