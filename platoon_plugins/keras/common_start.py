"""The same model with the same values on every worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.collectives.base import DTYPES
from platoon_base.common_start import require_same_layout
from platoon_base.layout import Layout
from platoon_plugins.keras.backends.base import Backend, Variable

__all__ = ["copy_state", "start_together"]


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
