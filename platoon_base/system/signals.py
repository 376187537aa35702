"""Signals as processes of a job need them, independent of their parent's settings."""

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
    except ValueError:  # not the main thread
        changed = False
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
