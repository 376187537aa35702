"""The state of a model that all workers have in common: weights, other variables of layers, and optimizer state."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.fingerprint import checksum
from platoon_base.worker import copy_first_values, make_equal
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.moving_averages import decay_for
from platoon_plugins.keras.optimizers import average_of_model, wrap_again
from platoon_plugins.keras.requirements import require_distributable, require_weights

__all__ = ["broadcast_variables", "end_alike", "first_values", "state_checksum", "state_of", "values_were_set"]


def broadcast_variables(model: Any, *, worker: Worker | None = None) -> None:
    """Copy the weights, statistics and optimizer state of rank 0 to all workers, before a loop over ``train_on_batch``.

    A collective call. A ``fit`` with `distribute` does the same at its start. For a single worker it does nothing.

    Parameters
    ----------
    model : keras.Model
        A built model; on Keras 2 it must be compiled too. If a model of Keras 3 is not compiled, its weights and
        statistics are copied, and the state of optimizers in its attributes.
    worker : Worker, optional
        The default is ``connect()``.

    Raises
    ------
    ConfigurationError
        If the model has no weights yet, or is a model of Keras 2 that is not compiled.
    LayoutMismatchError
        On every worker, before anything is changed, if the models differ between workers.
    """
    worker = connect() if worker is None else worker
    backend = backends.current()
    wrap_again(model, worker)
    compiled = getattr(model, "compiled", True)  # a model of Keras 2 has no such attribute: its back end checks
    if compiled:
        average = require_distributable(model, backend)
    else:
        average = average_of_model(model)
        require_weights(model, backend)
    if worker.global_size == 1:
        return
    copy_first_values(first_values(model, backend), worker, "broadcast_variables")
    decay_for(model, 1)  # a loop has no epochs; steps that divide a batch are as many as those of one process
    values_were_set(model)
    backend.vary_noise(model, worker.global_rank)
    if average is not None:
        backend.watch_losses(model, average)
        backend.place_gradients(model, average, worker)
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def first_values(model: Any, backend: Backend) -> list[Any]:
    """Return the variables to copy at the start of a fit: the model's state, and the epoch of a resumed training."""
    return [*_all_state_of(model, backend), _FirstEpoch(model, backend)]


def values_were_set(model: Any) -> bool:
    """Let Normalization layers compute their tensors from new values of their variables.

    Returns
    -------
    bool
        Whether functions of the model that have the tensors as constants are to be compiled again.
    """
    parts = model._flatten_layers() if hasattr(keras, "ops") else ()
    layers = [each for each in parts if getattr(each, "adapt_mean", None) is not None]
    before = [keras.ops.convert_to_numpy(tensor) for each in layers for tensor in (each.mean, each.variance)]
    for layer in layers:
        layer.finalize_state()
    after = [keras.ops.convert_to_numpy(tensor) for each in layers for tensor in (each.mean, each.variance)]
    if all(map(np.array_equal, before, after)):
        return False
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function") is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    return True


def end_alike(model: Any, backend: Backend, worker: Worker) -> None:
    """Make all state of a model equal on all workers, at the end of a training; a collective call of those left.

    Values that still differ are copied from the first worker: seeds of random layers, and with a rule the counters of
    optimizers and moments that it does not share.
    """
    variables = [*_all_state_of(model, backend), *backend.metrics(model).variables()]
    make_equal(variables, worker, "keras state at the end")


def state_of(model: Any, backend: Backend, statistics: bool = True) -> list[Variable]:
    """Return the variables that workers keep equal: weights, state of layers (if ``statistics``) and optimizer."""
    of_layers = [v for v in backend.statistics(model) if getattr(v, "rule", "") != "own"] if statistics else []
    return [*backend.weights(model), *of_layers, *backend.optimizer_state(model)]


def _all_state_of(model: Any, backend: Backend) -> list[Variable]:
    return [*backend.weights(model), *backend.statistics(model), *backend.optimizer_state(model)]


def state_checksum(model: Any, backend: Backend) -> int:
    """Return a checksum of weights, statistics and optimizer state, which almost surely changes if any bit does."""
    total = 0
    for variable in state_of(model, backend):
        total = checksum(variable.get_value(borrow=True), total)
    return total


class _FirstEpoch:
    """The epoch at which a callback makes training resume, with the methods of a variable."""

    name = "first epoch"

    def __init__(self, model: Any, backend: Backend) -> None:
        self._model, self._backend = model, backend

    def get_value(self, borrow: bool = False) -> Any:
        return np.array([self._backend.initial_epoch(self._model)])

    def set_value(self, value: Any) -> None:
        epoch = int(value[0])
        if epoch != self._backend.initial_epoch(self._model):
            self._backend.resume_at(self._model, epoch)
