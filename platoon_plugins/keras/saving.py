"""Files that several workers write: each worker replaces the file atomically."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.job import connected
from platoon_base.worker import warn_once
from platoon_plugins.keras import marks

__all__ = ["watch_saving"]

_REMEDY = (
    "save on one worker, `if is_main(): model.save(path)`, or give each a path of its own; a "
    "KerasTuner needs a directory for each worker"
)


def watch_saving() -> None:
    """Make ``save``, ``save_weights`` and ``export`` safe if workers call them with one path."""
    # Workers are warned if the model is not part of a prepared one, as their models may differ.
    places = [(keras.Model, name) for name in ("save", "save_weights", "export")]
    places += [(getattr(keras, module, None), name) for module in ("models", "saving") for name in _FUNCTIONS]
    for place, name in places:
        plain = getattr(place, name, None)
        if plain is not None and not hasattr(plain, "watches_files"):
            setattr(place, name, _watched(plain))


_FUNCTIONS = ("save_model", "save_weights")


def _watched(save: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(save)

    @functools.wraps(save)
    def watched(model: Any, filepath: Any, *args: Any, **options: Any) -> Any:
        worker = connected()
        if worker is None or worker.global_size == 1 or not isinstance(filepath, (str, os.PathLike)):
            return save(model, filepath, *args, **options)
        path = os.path.abspath(filepath)
        if not _is_prepared(model):
            _warn_if_not_alone(path, worker)
        folder = os.path.dirname(path)
        if save.__name__ == "export":
            os.makedirs(folder, exist_ok=True)
        given = signature.bind(model, filepath, *args, **options).arguments
        asks = os.path.exists(path) and not given.get("overwrite", True)
        if asks or not os.path.isdir(folder) or "://" in os.fspath(filepath):
            return save(model, filepath, *args, **options)
        return _replaced(path, lambda beside: save(model, beside, *args, **options))

    watched.watches_files = True  # type: ignore[attr-defined]
    return watched


def _is_prepared(model: Any) -> bool:
    wholes = list(marks.prepared)
    parts = (part for whole in wholes for part in getattr(whole, "_flatten_layers", list)())
    return model in marks.prepared or any(part is model for part in parts)


def _replaced(path: str, save: Callable[[str], Any]) -> Any:
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as beside:
        result = save(os.path.join(beside, name))
        for place, _, files in os.walk(beside):
            into = os.path.normpath(os.path.join(folder, os.path.relpath(place, beside)))
            os.makedirs(into, exist_ok=True)
            for file in files:
                os.replace(os.path.join(place, file), os.path.join(into, file))
    return result


def _warn_if_not_alone(path: str, worker: Worker) -> None:
    try:
        worker.advanced.require_same(f"the writer of {path}", f"rank {worker.global_rank}", _REMEDY)
    # Raised on the worker that writes later.
    except ConfigurationError:
        warn_once(f"this worker writes {path}, which another worker has written too: {_REMEDY}")
