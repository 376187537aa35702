"""SIGINT and SIGTERM as a process needs them that a launcher ends by them."""

from __future__ import annotations

import signal

__all__ = ["accept_interrupts"]


def accept_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt and SIGTERM end this process, even if it has inherited that both are ignored.

    A shell without job control starts the commands that it puts into the background (``&``) with SIGINT ignored, and
    Python leaves it so. Handlers that were set stay. Call it from the main thread.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
