"""Files that several workers write: prepared models replace them at once, others warn."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.job import connected
from platoon_base.worker import warn_once
from platoon_plugins.keras import trained

__all__ = ["watch_saving"]

_REMEDY = (
    "save on one worker, `if connect().is_leader: model.save(path)`, or give each a path of its own; a "
    "KerasTuner needs a directory for each worker"
)
_FILES = (".keras", ".h5", ".hdf5")


def watch_saving() -> None:
    """Make ``save`` and ``save_weights`` warn if two workers write one file, which may become a mixture of both.

    A model that `prepare` has prepared is written beside the file, and then takes its place: all workers have the same
    model, and each of them finds a whole file after its own call.
    """
    for name in ("save", "save_weights"):
        plain = getattr(keras.Model, name)
        if not hasattr(plain, "watches_files"):
            setattr(keras.Model, name, _watched(plain))


def _watched(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def watched(model: Any, filepath: Any, *args: Any, **options: Any) -> Any:
        worker = connected()
        if worker is None or worker.global_size == 1 or not isinstance(filepath, (str, os.PathLike)):
            return save(model, filepath, *args, **options)
        path = os.path.abspath(filepath)
        if model in trained.prepared and path.endswith(_FILES) and options.get("overwrite", True) and not args:
            return _replaced(path, lambda beside: save(model, beside, **options))
        _warn_if_not_alone(path, worker)
        try:
            return save(model, filepath, *args, **options)
        except BlockingIOError as exc:
            raise ConfigurationError(f"another worker is writing {path}: {_REMEDY}") from exc

    watched.watches_files = True  # type: ignore[attr-defined]
    return watched


def _replaced(path: str, save: Callable[[str], Any]) -> Any:
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{socket.gethostname()}-{os.getpid()}-{name}")
    try:
        result = save(beside)
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
    return result


def _warn_if_not_alone(path: str, worker: Worker) -> None:
    try:
        worker.advanced.require_same(f"the writer of {path}", f"rank {worker.global_rank}", _REMEDY)
    except ConfigurationError:  # raised on the worker that writes later
        warn_once(f"worker {worker.global_rank} writes {path}, which another worker has written too: {_REMEDY}")
