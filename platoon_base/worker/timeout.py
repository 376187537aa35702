"""The default timeout of calls that wait for other processes."""

from __future__ import annotations

import os

from platoon_base.errors import ConfigurationError
from platoon_base.system.environment import TIMEOUT_S

__all__ = ["DEFAULT_TIMEOUT_S"]


def _default_timeout_s() -> float:
    text = os.environ.get(TIMEOUT_S, "300")  # A cold compilation may take that long.
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"got PLATOON_TIMEOUT_S={text!r}: it must be a positive number of seconds")
    return seconds


DEFAULT_TIMEOUT_S = _default_timeout_s()
