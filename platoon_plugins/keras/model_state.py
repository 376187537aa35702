"""The state of a model that is equal on all workers: weights, statistics and optimizer state."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.fingerprint import checksum
from platoon_base.worker import checksums, copy_first_values, make_equal
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.moving_averages import decay_for
from platoon_plugins.keras.optimizers import average_of_model, wrap_again
from platoon_plugins.keras.requirements import require_distributable, require_weights

__all__ = ["broadcast_variables", "end_alike", "first_values", "state_checksum", "state_of", "values_were_set"]


def broadcast_variables(model: Any, *, worker: Worker | None = None) -> None:
    """Copy the weights, statistics and optimizer state of rank 0 to all workers.

    Call it before a loop over ``train_on_batch``; a ``fit`` with `distribute` does the same. It is
    a collective call, and does nothing for a single worker.

    Parameters
    ----------
    model : keras.Model
        A built model; on Keras 2 it must be compiled too. If a model of Keras 3 is not compiled,
        only the optimizers in its attributes are included.
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
    # Models of Keras 2 lack this attribute: their back end checks it.
    compiled = getattr(model, "compiled", True)
    if compiled:
        average = require_distributable(model, backend)
    else:
        average = average_of_model(model)
        require_weights(model, backend)
    if worker.global_size == 1:
        return
    copy_first_values(first_values(model, backend), worker, "broadcast_variables")
    # A loop has no epochs, and as many steps as one process.
    decay_for(model, 1)
    values_were_set(model)
    backend.vary_noise(model, worker.global_rank)
    if average is not None:
        backend.watch_losses(model, average)
        backend.place_gradients(model, average, worker)
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def first_values(model: Any, backend: Backend) -> list[Any]:
    """Return the variables to copy at the start of a fit, and the epoch of a resumed training."""
    return [*_all_state_of(model, backend), _FirstEpoch(model, backend)]


def values_were_set(model: Any) -> bool:
    """Update Normalization layers after changes of variables; return if functions are remade."""
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
    """Copy state that still differs from the first worker at the end; a collective call."""
    variables = [*_all_state_of(model, backend), *backend.metrics(model).variables()]
    make_equal(variables, worker, "keras state at the end")


def state_of(model: Any, backend: Backend, statistics: bool = True) -> list[Variable]:
    """Return the variables that workers keep equal; state of layers only with ``statistics``."""
    of_layers = [v for v in backend.statistics(model) if getattr(v, "rule", "") != "own"] if statistics else []
    return [*backend.weights(model), *of_layers, *backend.optimizer_state(model)]


def _all_state_of(model: Any, backend: Backend) -> list[Variable]:
    return [*backend.weights(model), *backend.statistics(model), *backend.optimizer_state(model)]


def state_checksum(model: Any, backend: Backend) -> int:
    return checksum(np.array(checksums(state_of(model, backend))))


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
