"""The user's extensions: run on the leader only, with the center's values; files that they write."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from blocks.extensions import TrainingExtension

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.worker import warn_once

_CALLBACKS = ("before_epoch", "after_epoch", "after_batch", "after_training")

CenterOf = Callable[[Any], contextlib.AbstractContextManager[None]]
IsLeader = Callable[[Any], bool]


def all_extensions(extensions: Iterable[Any]) -> Iterator[Any]:
    for extension in extensions:
        yield extension
        managed = list(getattr(extension, "sub_extensions", ()))
        # EarlyStopping makes its Checkpoint a sub-extension only in before_training.
        managed += [getattr(extension, "checkpoint_extension", None)]
        yield from all_extensions(other for other in managed if other is not None)


class _OnLeader:
    """Replacement of an extension's ``dispatch``; it is pickled, so it holds no worker."""

    def __init__(self, extension: Any, is_leader: IsLeader) -> None:
        self._extension = extension
        self._is_leader = is_leader

    def __call__(self, callback_invoked: str, *from_main_loop: Any) -> None:
        if self._is_leader(self._extension.main_loop):
            type(self._extension).dispatch(self._extension, callback_invoked, *from_main_loop)


def run_on_leader(extension: Any, is_leader: IsLeader) -> None:
    """Make an extension run on the leader only; ``is_leader``, a module's function, is pickled."""
    if not isinstance(vars(extension).get("dispatch"), _OnLeader):
        extension.dispatch = _OnLeader(extension, is_leader)


class _InCenter:
    # The default for pickles of an earlier version.
    _name = "do"

    def __init__(self, extension: Any, name: str, center_of: CenterOf) -> None:
        self._extension = extension
        self._name = name
        self._center_of = center_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._center_of(self._extension.main_loop):
            return getattr(type(self._extension), self._name)(self._extension, *args, **kwargs)


def run_in_center(extension: Any, center_of: CenterOf) -> None:
    """Run ``do``, or else the callbacks, with the center's values; ``center_of`` is pickled."""
    names = (
        ["do"]
        if hasattr(extension, "do")
        else [name for name in _CALLBACKS if getattr(type(extension), name) is not getattr(TrainingExtension, name)]
    )
    for name in names:
        if not isinstance(vars(extension).get(name), _InCenter):
            setattr(extension, name, _InCenter(extension, name, center_of))


_WRITES = os.O_WRONLY | os.O_RDWR

_worker: weakref.ref[Worker] | None = None
_hooked = _asking = False
_known: set[str] = set()


def watch_files(worker: Worker) -> None:
    """Start to warn if an extension writes a file that another worker's has written."""
    global _worker, _hooked
    _worker = weakref.ref(worker)
    _known.clear()
    # An audit hook cannot be removed. It does not see files that C libraries such as h5py open.
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
