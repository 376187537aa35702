"""Signals as processes of a job need them, whatever the process that started them has set."""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["accept_interrupts", "catches", "default_sigchld", "keep_interrupts"]

_POLL_INTERVAL_S = 0.01


def accept_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt and SIGTERM end this process, even if it has inherited that both are ignored.

    A shell without job control starts the commands that it puts into the background (``&``) with SIGINT ignored, and
    Python leaves it so. Handlers that were set stay. Call it from the main thread.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def keep_interrupts() -> None:
    """Raise a KeyboardInterrupt again that has come where Python drops exceptions: in finalizers and some callbacks.

    Otherwise a worker would go on, and be killed at the end of its time without having saved.
    """
    sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)


def _unraisable(plain: Any, unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
        _thread.start_new_thread(_interrupt_again, ())  # a Thread takes locks that the main thread may hold here
    else:
        plain(unraisable)


def _interrupt_again() -> None:
    """Interrupt the main thread once it has left `_unraisable`, which would drop the exception too."""
    while _is_within(sys._current_frames().get(threading.main_thread().ident or 0)):
        time.sleep(_POLL_INTERVAL_S)
    _thread.interrupt_main()


def _is_within(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _unraisable.__code__:
            return True
        frame = frame.f_back
    return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process of this host has a handler for a signal, or blocks it for `signal.sigwait`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


@contextlib.contextmanager
def default_sigchld() -> Iterator[None]:
    """Let this process learn the exit status of its children, even if it has inherited that SIGCHLD is ignored.

    A handler that was set stays. In another thread than the main one nothing is changed.
    """
    try:
        before = signal.getsignal(signal.SIGCHLD)
        changed = before is signal.SIG_IGN
        if changed:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError:  # not the main thread
        changed = False
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
