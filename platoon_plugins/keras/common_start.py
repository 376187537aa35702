"""The same model with the same values on every worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.collectives.base import DTYPES
from platoon_base.common_start import require_same_layout
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.optimizer import average_of

__all__ = ["broadcast_variables", "copy_state", "start_together"]


def broadcast_variables(model: Any, *, worker: Worker | None = None) -> None:
    """Give the weights, statistics and optimizer of rank 0 to all workers, before a loop over ``train_on_batch``.

    All workers call it; ``fit`` with `distribute` does it by itself. In a job of one nothing happens.

    Parameters
    ----------
    model : keras.Model
        Compiled, and built.
    worker : Worker, optional
        The default is ``connect()``.

    Raises
    ------
    ConfigurationError
        If the model is not compiled, or has no weights yet.
    LayoutMismatchError
        On every worker, before anything is changed, if the model of one is another.
    """
    worker = connect() if worker is None else worker
    backend = backends.current()
    average = average_of(model.optimizer) if getattr(model, "optimizer", None) is not None else None
    backend.require_trainable(model, average is not None)
    if not backend.weights(model):
        raise ConfigurationError("got a model without trainable weights: build it, and compile it, before this call")
    if worker.global_size == 1:
        return
    start_together(model, worker, backend, "broadcast_variables")
    if average is not None:
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def start_together(model: Any, worker: Worker, backend: Backend, purpose: str) -> None:
    """Give weights, statistics, optimizer and first epoch of rank 0 to all workers, which all call it.

    Raises
    ------
    LayoutMismatchError
        On every worker, before anything is changed, if the model of one is another, or its purpose is.
    """
    variables = _state(model, backend)
    layout = Layout.of([v.get_value(borrow=True) for v in variables], [v.name for v in variables])
    require_same_layout(layout, worker, purpose)
    epoch = np.array([backend.initial_epoch(model)])
    worker.broadcast([epoch])
    if worker.global_rank and epoch[0]:
        backend.resume_at(model, int(epoch[0]))
    copy_state(model, worker, backend, root=0)


def copy_state(model: Any, worker: Worker, backend: Backend, root: int) -> None:
    """Give weights, statistics and optimizer of one worker to all others."""
    for variable in _state(model, backend):
        array = np.array(variable.get_value(borrow=True), order="C")
        if array.dtype.name in DTYPES:
            worker.broadcast([array], root)
            variable.set_value(array)


def _state(model: Any, backend: Backend) -> list[Variable]:
    return [*backend.weights(model), *backend.statistics(model), *backend.optimizer_state(model)]
