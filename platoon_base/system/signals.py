"""Signals as processes of a job need them, whatever the process that started them has set."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["accept_interrupts", "default_sigchld"]


def accept_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt and SIGTERM end this process, even if it has inherited that both are ignored.

    A shell without job control starts the commands that it puts into the background (``&``) with SIGINT ignored, and
    Python leaves it so. Handlers that were set stay. Call it from the main thread.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


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
