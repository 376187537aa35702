"""Patches of Keras: training on one worker alone is detected, and files are replaced atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.job import connected
from platoon_base.worker import warn_once
from platoon_plugins.keras import backends, marks, seeds
from platoon_plugins.keras.callbacks import bounds_of
from platoon_plugins.keras.marks import patch, refuse_unwrapped_copies, signature_of
from platoon_plugins.keras.optimizers import average_of_model
from platoon_plugins.keras.statistics import watch_batch_normalization
from platoon_plugins.keras.sync import is_distributed, take_in

_REMEDY = (
    "save on one worker, `if is_main(): model.save(path)`, or use a different path on each; a "
    "KerasTuner needs a directory for each worker"
)


def patch_keras() -> None:
    refuse_unwrapped_copies()
    watch_batch_normalization()
    lists: Any = keras.callbacks.CallbackList
    patch(lists, "__init__", _make_list)
    patch(lists, "on_train_begin", _begin_training)
    patch(keras.Model, "train_on_batch", _train_on_batch_together)
    patch(keras.Model, "_symbolic_build", _build_keeping_numpy)
    if not hasattr(keras, "tree"):
        # Callbacks of Keras 2 cannot set the first epoch.
        from keras.engine import training_arrays, training_generator

        patch(training_arrays, "fit_loop", _resumed)
        patch(training_generator, "fit_generator", _resumed)
    # A warning is given for a model that is not part of a prepared one: the workers' models may differ.
    places = [(keras.Model, name) for name in ("save", "save_weights", "export")]
    modules = [getattr(keras, module, None) for module in ("models", "saving")]
    places += [(module, name) for module in modules for name in ("save_model", "save_weights")]
    for place, name in places:
        patch(place, name, _save_atomically)


# Fits without this package.


def _make_list(plain: Any, callback_list: Any, callbacks: Any = None, *args: Any, **options: Any) -> None:
    plain(callback_list, take_in(callbacks), *args, **options)


def _begin_training(plain: Any, callback_list: Any, logs: Any = None) -> None:
    alone = not is_distributed(callback_list.callbacks)
    if alone:
        _refuse_trained(callback_list.model, "fit", "pass callbacks=distribute([...]) to it")
    plain(callback_list, logs)
    # The script's own callbacks may have shared the weights.
    if alone:
        _warn_if_unsynchronized(callback_list.model)


def _train_on_batch_together(plain: Any, model: Any, *args: Any, **options: Any) -> Any:
    if model in marks.trained and model not in marks.in_loops:
        _refuse_trained(model, "train_on_batch", _LOOP)
    return plain(model, *args, **options)


def _build_keeping_numpy(plain: Any, model: Any, *args: Any, **options: Any) -> Any:
    """Let Keras build a model without advancing NumPy's generator."""
    worker = connected()
    with contextlib.nullcontext() if worker is None or worker.global_size == 1 else seeds.kept_numpy():
        return plain(model, *args, **options)


def _resumed(plain: Any, model: Any, *args: Any, **options: Any) -> Any:
    given = int(options.get("initial_epoch") or 0)
    bounds = bounds_of(options.get("callbacks") or [])
    options["initial_epoch"] = bounds[0][2].first_epoch(model, options.get("epochs"), given) if bounds else given
    marks.in_loops.add(model)
    try:
        return plain(model, *args, **options)
    finally:
        marks.in_loops.discard(model)


_LOOP = "compile with DistributedOptimizer and call broadcast_variables(model) before the loop, or use fit"


def _refuse_trained(model: Any, call: str, remedy: str) -> None:
    """Raise if a model that several workers have trained would now be trained on this one alone."""
    worker = _unsynchronized_worker(model, refuses=True)
    if worker is not None and model in marks.trained:
        raise ConfigurationError(
            f"got a {call} without distribute(...) of a model that a fit with distribute(...) has "
            f"trained: from here on each of the {worker.global_size} workers would train its own "
            f"model, on its part of the data; {remedy}. To train on this worker alone, train a "
            "copy of the model (keras.models.clone_model, set_weights)"
        )


def _warn_if_unsynchronized(model: Any) -> None:
    worker = _unsynchronized_worker(model)
    if worker is not None:
        warn_once(
            f"got a fit without distribute(...) in a job of {worker.global_size} workers, so this "
            "worker trains its own model, which the others do not get: to train one model call "
            "prepare(model) before fit, or pass callbacks=distribute([...]). Ignore this if the "
            "fit is meant for this worker alone"
        )


def _unsynchronized_worker(model: Any, refuses: bool = False) -> Worker | None:
    """Return the worker if its job has several and nothing synchronizes the model, else None."""
    # With ``refuses``, it raises if the model averages gradients and no fit has prepared it.
    worker = connected()
    if model is None or worker is None or worker.global_size == 1:
        return None
    average = average_of_model(model)
    if average is not None:
        if refuses:
            average.require_attached()
        return None
    # The script itself synchronizes the weights.
    if worker.advanced.shares and worker not in marks.sharing:
        return None
    return None if backends.current().trains_together(model) else worker


# Files that several workers write.


def _save_atomically(plain: Any, model: Any, filepath: Any, *args: Any, **options: Any) -> Any:
    worker = connected()
    if worker is None or worker.global_size == 1 or not isinstance(filepath, (str, os.PathLike)):
        return plain(model, filepath, *args, **options)
    path = os.path.abspath(filepath)
    if not _is_prepared(model):
        _warn_if_not_alone(path, worker)
    folder = os.path.dirname(path)
    if plain.__name__ == "export":
        os.makedirs(folder, exist_ok=True)
    given = signature_of(plain).bind(model, filepath, *args, **options).arguments
    asks = os.path.exists(path) and not given.get("overwrite", True)
    if asks or not os.path.isdir(folder) or "://" in os.fspath(filepath):
        return plain(model, filepath, *args, **options)
    return _replaced(path, lambda beside: plain(model, beside, *args, **options))


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
    except ConfigurationError:  # The worker that writes later gets it.
        warn_once(f"this worker writes {path}, which another worker has written too: {_REMEDY}")
