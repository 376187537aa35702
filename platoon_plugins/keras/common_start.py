"""The same model with the same values on every worker."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.collectives.base import DTYPES
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.worker.initial_values import require_same_layout
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.requirements import require_distributable

__all__ = ["broadcast_variables", "copy_state", "start_together", "state_checksum"]


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
    average = require_distributable(model, backend)
    if worker.global_size == 1:
        return
    start_together(model, worker, backend, "broadcast_variables", range(worker.global_size))
    if average is not None:
        backend.watch_losses(model, average)
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def start_together(model: Any, worker: Worker, backend: Backend, purpose: str, members: Sequence[int]) -> None:
    """Give weights, statistics, optimizer and first epoch of the first member to all, which all call it.

    Parameters
    ----------
    members : sequence of int
        Ranks that take part: all that were launched, or those that are left of them.

    Raises
    ------
    LayoutMismatchError
        On every worker, before anything is changed, if the model of one is another, or its purpose is.
    """
    variables = _state(model, backend)
    layout = Layout.of([v.get_value(borrow=True) for v in variables], [v.name for v in variables])
    epoch = np.array([backend.initial_epoch(model)])
    if len(members) == worker.global_size:
        require_same_layout(layout, worker, purpose)
        worker.broadcast([epoch])
        copy_state(model, worker, backend, root=0)
    else:
        _copy_among(members, worker, hashlib.sha256(layout.fingerprint + purpose.encode()), variables, epoch)
    if worker.global_rank != members[0] and epoch[0]:
        backend.resume_at(model, int(epoch[0]))


def copy_state(model: Any, worker: Worker, backend: Backend, root: int, statistics: bool = True) -> None:
    """Give weights, statistics and optimizer of one worker to all others."""
    for variable in _state(model, backend, statistics):
        array = np.array(variable.get_value(borrow=True), order="C")
        if array.dtype.name not in DTYPES:
            raise ConfigurationError(
                f"got {variable.name} of dtype {array.dtype}, which cannot be copied to other workers: they exchange "
                f"{', '.join(DTYPES)}"
            )
        worker.broadcast([array], root)
        variable.set_value(array)


def state_checksum(model: Any, backend: Backend) -> int:
    """Return a checksum of weights, statistics and optimizer: another one if a bit differs, all but surely."""
    checksum = 0
    for variable in _state(model, backend):
        checksum = zlib.crc32(np.ascontiguousarray(variable.get_value(borrow=True)), checksum)
    return checksum


def _copy_among(members: Sequence[int], worker: Worker, digest: Any, variables: list[Variable], epoch: Any) -> None:
    """Copy as `copy_state` does when some of those launched are gone: as a sum, to which the others add zeros."""
    arrays = [epoch, *(variable.get_value(borrow=True) for variable in variables)]
    mine = worker.global_rank == members[0]
    name = f"keras fit begins with {digest.hexdigest()[:16]}"
    total = worker.sum_arrays(name, [array if mine else np.zeros_like(array) for array in arrays]).arrays
    epoch[:] = total[0]
    for variable, array, value in zip(variables, arrays[1:], total[1:]):
        variable.set_value(value.astype(array.dtype))


def _state(model: Any, backend: Backend, statistics: bool = True) -> list[Variable]:
    others = backend.statistics(model) if statistics else []
    return [*backend.weights(model), *others, *backend.optimizer_state(model)]
