"""Checks of each fit: adds callbacks to the list of `distribute`, and detects fits without it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.job import connected
from platoon_base.worker import warn_once
from platoon_plugins.keras import backends, seeds, trained
from platoon_plugins.keras.callbacks import bounds_of
from platoon_plugins.keras.optimizers import average_of_model
from platoon_plugins.keras.resuming import resume_loops_of_keras_2
from platoon_plugins.keras.sync import is_distributed, take_in

__all__ = ["watch_fits"]


def watch_fits() -> None:
    """Patch ``CallbackList`` and ``train_on_batch`` to detect training on one worker alone."""
    lists: Any = keras.callbacks.CallbackList
    if hasattr(lists.__init__, "watches_fits"):
        return
    make, begin, step = lists.__init__, lists.on_train_begin, keras.Model.train_on_batch

    @functools.wraps(make)
    def __init__(callback_list: Any, callbacks: Any = None, *args: Any, **options: Any) -> None:  # noqa: N807
        make(callback_list, take_in(callbacks), *args, **options)

    @functools.wraps(begin)
    def on_train_begin(callback_list: Any, logs: Any = None) -> None:
        alone = not is_distributed(callback_list.callbacks)
        if alone:
            _refuse_trained(callback_list.model, "fit", "pass callbacks=distribute([...]) to it")
        begin(callback_list, logs)
        # The script's own callbacks may have shared the weights.
        if alone:
            _warn_if_unsynchronized(callback_list.model)

    @functools.wraps(step)
    def train_on_batch(model: Any, *args: Any, **options: Any) -> Any:
        if model in trained.models and model not in trained.in_loops:
            _refuse_trained(model, "train_on_batch", _LOOP)
        return step(model, *args, **options)

    build = getattr(keras.Model, "_symbolic_build", None)
    if build is not None:
        keras.Model._symbolic_build = _keeping_numpy(build)
    __init__.watches_fits = True  # type: ignore[attr-defined]
    lists.__init__, lists.on_train_begin = __init__, on_train_begin
    keras.Model.train_on_batch = train_on_batch
    if not hasattr(keras, "tree"):
        resume_loops_of_keras_2(_first_epoch)


def _keeping_numpy(build: Callable[..., Any]) -> Callable[..., Any]:
    """Let Keras build a model without advancing NumPy's generator."""

    @functools.wraps(build)
    def _symbolic_build(model: Any, *args: Any, **options: Any) -> Any:
        worker = connected()
        with contextlib.nullcontext() if worker is None or worker.global_size == 1 else seeds.kept_numpy():
            return build(model, *args, **options)

    return _symbolic_build


def _first_epoch(model: Any, options: dict[str, Any]) -> int:
    given = int(options.get("initial_epoch") or 0)
    bounds = bounds_of(options.get("callbacks") or [])
    if not bounds:
        return given
    _, _, fits = bounds[0]
    return fits.first_epoch(model, options.get("epochs"), given)


_LOOP = "compile with DistributedOptimizer and call broadcast_variables(model) before the loop, or use fit"


def _refuse_trained(model: Any, call: str, remedy: str) -> None:
    """Raise if a model that several workers have trained would now be trained on this one alone."""
    worker = _unsynchronized_worker(model, refuses=True)
    if worker is not None and model in trained.models:
        raise ConfigurationError(
            f"got a {call} without distribute(...) of a model that a fit with it has trained: each of the "
            f"{worker.global_size} workers would train a model of its own from here on, on its part of the data; "
            f"{remedy}. To train on this worker alone, train a copy of it (keras.models.clone_model, set_weights)"
        )


def _warn_if_unsynchronized(model: Any) -> None:
    worker = _unsynchronized_worker(model)
    if worker is not None:
        warn_once(
            f"got a fit without distribute(...) in a job of {worker.global_size} workers: this worker trains a model "
            "of its own, of which the others get nothing; call prepare(model) before it, or pass "
            "callbacks=distribute([...]), to train one model together. If it is meant for this worker alone, "
            "all is well"
        )


def _unsynchronized_worker(model: Any, refuses: bool = False) -> Worker | None:
    """Return the worker if its job has several and nothing synchronizes the model, else None."""
    # With `refuses`, raise if the model averages gradients and no fit has prepared it.
    worker = connected()
    if model is None or worker is None or worker.global_size == 1:
        return None
    average = average_of_model(model)
    if average is not None:
        if refuses:
            average.require_attached()
        return None
    # The script itself synchronizes the weights.
    if worker.advanced.shares and worker not in trained.sharing:
        return None
    return None if backends.current().trains_together(model) else worker
