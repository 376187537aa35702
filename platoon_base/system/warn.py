"""Warnings for users: a Python warning, and a line in a worker's log, which the launcher shows."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from platoon_base.errors import PlatoonWarning

log = logging.getLogger(__name__)

said: set[str] = set()  # Texts that this process has used already.
_logged = False


def warn_once(text: str) -> None:
    """Warn by `PlatoonWarning`, once for each text in this process; log it after `log_warnings`."""
    if text in said:
        return
    said.add(text)
    # A script may ignore warnings, but the line in the log stays.
    if _logged:
        log.warning("%s", text)
    warnings.warn(text, PlatoonWarning, stacklevel=3)


def log_warnings() -> None:
    """Log each `PlatoonWarning` of this process once instead of printing it."""
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
