"""Averages of the float state of a model that is not trained, at the end of each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.fingerprint import checksum
from platoon_plugins.keras.backends.base import Backend

__all__ = ["Statistics"]

Array = np.ndarray[Any, Any]


class Statistics:
    """Averages running statistics and other variables that changed in an epoch; frozen weights are not sent.

    The workers first sum, together with other values, flags of which variables have changed. The checksums for them (a
    second for a billion weights) take much less time than sending the variables, in float64, through the controller.

    Parameters
    ----------
    worker : Worker
    backend : Backend
    model : keras.Model
    """

    def __init__(self, worker: Worker, backend: Backend, model: Any) -> None:
        self._worker, self._backend, self._model = worker, backend, model
        self._checksums: list[int] = []

    def start(self) -> None:
        """Record the state, which is equal on all workers at the start of a fit."""
        self._checksums = self._compute_checksums()

    def changed(self) -> Array:
        """Return a flag for each variable, for a sum over the workers: 1 if it has changed since the last average."""
        return np.array([now != before for now, before in zip(self._compute_checksums(), self._checksums)], np.float64)

    def average(self, name: str, changed: Array) -> None:
        """Average the variables that have changed on any worker; a collective call.

        Parameters
        ----------
        name : str
            A different one for each call.
        changed : ndarray
            The sum of the results of `changed` over all workers.
        """
        variables = [v for v, count in zip(self._backend.statistics(self._model), changed) if count]
        if not variables:
            return
        summed = self._worker.advanced.sum_arrays(name, [variable.get_value(borrow=True) for variable in variables])
        for variable, total in zip(variables, summed.arrays):
            variable.set_value((total / len(summed.ranks)).astype(variable.get_value(borrow=True).dtype))
        self._checksums = self._compute_checksums()

    def _compute_checksums(self) -> list[int]:
        values = (variable.get_value(borrow=True) for variable in self._backend.statistics(self._model))
        return [checksum(value) for value in values]
