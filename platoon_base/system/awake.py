"""A clock for deadlines that stands still while this process is stopped.

A stopped process (SIGSTOP, a frozen container or machine) cannot receive anything: that time must
not count as silence of peers, or toward its own deadlines. A wait must call `awake` at least every
`MAX_GAP_S` seconds; a longer gap is not counted.
"""

from __future__ import annotations

import time

__all__ = ["MAX_GAP_S", "awake"]

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
