"""The handle behind a worker, whichever of its two classes a script passes."""

from __future__ import annotations

from typing import Any

from platoon_base.job.joining import connect
from platoon_base.worker.handle import Worker

__all__ = ["handle_of"]


def handle_of(worker: Any = None) -> Worker:
    """Return the handle of a worker of `platoon_api`, a handle itself, or by default that of ``connect()``."""
    found: Worker = connect() if worker is None else getattr(worker, "handle", worker)
    return found
