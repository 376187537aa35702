"""Warnings that a user must see: a line in the worker's log, which the launcher prints too, and a Python warning."""

from __future__ import annotations

import logging
import warnings

from platoon_base.errors import PlatoonWarning

__all__ = ["LOG_MARK", "warn_once"]

log = logging.getLogger(__name__)

LOG_MARK = f"WARNING {__name__}: "  # by which the launcher finds these lines in a worker's log

said: set[str] = set()  # in this process


def warn_once(text: str) -> None:
    """Warn, once of each text, in this process and on the launcher's output."""
    if text in said:
        return
    said.add(text)
    log.warning("%s", text)
    warnings.warn(text, PlatoonWarning, stacklevel=3)
