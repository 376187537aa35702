"""A warning about files that extensions of several workers write."""

from __future__ import annotations

import os
import stat
import sys
import weakref
from typing import Any

from blocks.extensions import TrainingExtension

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.worker import warn_once

__all__ = ["watch_files"]

_WRITES = os.O_WRONLY | os.O_RDWR

_worker: weakref.ref[Worker] | None = None
_hooked = _asking = False
_known: set[str] = set()


def watch_files(worker: Worker) -> None:
    """Start to warn if an extension writes a file that another worker's has written."""
    global _worker, _hooked
    _worker = weakref.ref(worker)
    _known.clear()
    # A hook cannot be removed. It sees no files that C libraries open, such as h5py.
    if not _hooked:
        _hooked = True
        sys.addaudithook(_note)


def _note(event: str, arguments: Any) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES:
            _compare(path)
    elif event == "os.rename":
        _compare(arguments[1])


def _compare(path: Any) -> None:
    global _asking
    worker = None if _worker is None else _worker()
    if worker is None or worker.closed or _asking or not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = os.path.abspath(os.fsdecode(path))
    if name in _known or _is_special(name) or (extension := _running()) is None:
        return
    _known.add(name)
    kind = type(extension).__name__
    remedy = f"prepare(main_loop, leader_only=({kind},)) makes only the first worker write it, with the center's values"
    # The request itself may open files.
    _asking = True
    try:
        worker.advanced.require_same(f"the writer of {name}"[:256], f"rank {worker.global_rank}", remedy)
    except ConfigurationError:
        # This is raised on the worker that writes later.
        warn_once(f"{kind} writes {name}, which another worker has written too, each with its own parameters: {remedy}")
    except PlatoonError:
        pass  # The job ends, and its end is reported elsewhere.
    finally:
        _asking = False


def _is_special(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _running() -> TrainingExtension | None:
    """Return the user's extension whose method is on the stack, or None."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, TrainingExtension) and not type(found).__module__.startswith("platoon_plugins."):
            return found
        frame = frame.f_back
    return None
