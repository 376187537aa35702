"""The handle of a worker of either class, and the context of its device."""

from __future__ import annotations

from typing import Any

from platoon_base.job.joining import connect
from platoon_base.worker.handle import Worker

__all__ = ["context_of_device", "handle_of"]


def handle_of(worker: Any = None) -> Worker:
    """Return the handle of a worker of `platoon_api`, a handle itself, or that of ``connect()``."""
    found: Worker = connect() if worker is None else getattr(worker, "handle", worker)
    return found


def context_of_device() -> Any:
    from theano.gpuarray.type import get_context, list_contexts

    return get_context(None) if None in list_contexts() else None
