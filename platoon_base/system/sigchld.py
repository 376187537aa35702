"""SIGCHLD as a parent needs it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["default_sigchld"]


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
