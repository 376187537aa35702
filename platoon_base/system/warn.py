"""Warnings that a user must see: a Python warning, and in a worker a line of its log, which the launcher shows."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from platoon_base.errors import PlatoonWarning

__all__ = ["log_warnings", "warn_once"]

log = logging.getLogger(__name__)

said: set[str] = set()  # in this process
_logged = False  # whether this process logs its warnings


def warn_once(text: str) -> None:
    """Warn by `PlatoonWarning`, once of each text in this process; a process with `log_warnings` logs it too.

    The line in the log is there though a script ignores warnings.
    """
    if text in said:
        return
    said.add(text)
    if _logged:
        log.warning("%s", text)
    warnings.warn(text, PlatoonWarning, stacklevel=3)


def log_warnings() -> None:
    """From now on log each `PlatoonWarning` of this process, once of each text, instead of printing it."""
    global _logged
    if _logged:
        return
    _logged = True
    show = warnings.showwarning

    def log_ours(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, PlatoonWarning):
            show(message, category, *where, **more)
        elif str(message) not in said:
            said.add(str(message))
            log.warning("%s", message)

    warnings.showwarning = log_ours
