"""Waiting for file descriptors of any number: `select.select` refuses those above 1,023."""

from __future__ import annotations

import select

__all__ = ["readable"]


def readable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Return whether a file descriptor can be read, within ``timeout_s``; None waits without end.

    A pidfd can be read from the moment the process is a zombie.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else 1e3 * timeout_s))
