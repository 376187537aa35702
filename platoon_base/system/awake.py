"""A clock for deadlines, which stands still while this process is stopped (SIGSTOP, a frozen container or machine).

A process that was stopped can have heard nothing and done nothing meanwhile. So that time counts neither as the silence
of others nor toward the deadlines of its waits. The kernel does not report it, but a wait that calls `awake` at least
every `MAX_GAP_S` seconds notices the gap.
"""

from __future__ import annotations

import time

__all__ = ["MAX_GAP_S", "awake"]

MAX_GAP_S = 2.0  # a longer time between two calls does not count

_seen, _stopped_s = time.monotonic(), 0.0


def awake() -> float:
    """Return seconds of a monotonic clock; only differences within one wait of one process have a meaning."""
    global _seen, _stopped_s
    now = time.monotonic()
    gap, _seen = now - _seen, now
    if gap > MAX_GAP_S:
        _stopped_s += gap
    return now - _stopped_s
