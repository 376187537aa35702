"""The state of a model that is the same on all workers: weights, statistics and optimizer."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.worker import copy_first_values
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.optimizers import average_of_model, wrap_again
from platoon_plugins.keras.requirements import require_distributable, require_weights

__all__ = ["broadcast_variables", "first_values", "state_checksum", "state_of"]


def broadcast_variables(model: Any, *, worker: Worker | None = None) -> None:
    """Give the weights, statistics and optimizer of rank 0 to all workers, before a loop over ``train_on_batch``.

    All workers call it; ``fit`` with `distribute` does it by itself. With one worker nothing happens.

    Parameters
    ----------
    model : keras.Model
        Built; on Keras 2 also compiled. Of one that is not, weights and statistics are given, and optimizers in its
        attributes.
    worker : Worker, optional
        The default is ``connect()``.

    Raises
    ------
    ConfigurationError
        If the model has no weights yet, or is one of Keras 2 that is not compiled.
    LayoutMismatchError
        On every worker, before anything is changed, if the model of one is another.
    """
    worker = connect() if worker is None else worker
    backend = backends.current()
    wrap_again(model, worker)
    compiled = getattr(model, "compiled", True)  # which a model of Keras 2 does not tell: its back end looks
    if compiled:
        average = require_distributable(model, backend)
    else:
        average = average_of_model(model)
        require_weights(model, backend)
    if worker.global_size == 1:
        return
    copy_first_values(first_values(model, backend), worker, "broadcast_variables")
    if average is not None:
        backend.watch_losses(model, average)
        backend.place_gradients(model, average, worker)
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def first_values(model: Any, backend: Backend) -> list[Any]:
    """Return what a fit begins with: the state of the model, and the epoch at which training resumes."""
    return [*state_of(model, backend), _FirstEpoch(model, backend)]


def state_of(model: Any, backend: Backend, statistics: bool = True) -> list[Variable]:
    """Return the variables of weights, statistics unless they are left out, and optimizer."""
    of_layers = backend.statistics(model) if statistics else []
    return [*backend.weights(model), *of_layers, *backend.optimizer_state(model)]


def state_checksum(model: Any, backend: Backend) -> int:
    """Return a checksum of weights, statistics and optimizer: another one if a bit differs, all but surely."""
    checksum = 0
    for variable in state_of(model, backend):
        checksum = zlib.crc32(np.ascontiguousarray(variable.get_value(borrow=True)), checksum)
    return checksum


class _FirstEpoch:
    """The epoch at which a callback wants training to resume, as a variable."""

    name = "first epoch"

    def __init__(self, model: Any, backend: Backend) -> None:
        self._model, self._backend = model, backend

    def get_value(self, borrow: bool = False) -> Any:
        return np.array([self._backend.initial_epoch(self._model)])

    def set_value(self, value: Any) -> None:
        epoch = int(value[0])
        if epoch != self._backend.initial_epoch(self._model):
            self._backend.resume_at(self._model, epoch)
