"""The float state of a model that is not trained, averaged at the end of each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.fingerprint import checksum
from platoon_plugins.keras.backends.base import Backend

__all__ = ["Statistics"]

Array = np.ndarray[Any, Any]


class Statistics:
    """Averages running statistics and whatever else changed in an epoch; weights that are frozen are not sent.

    The workers first tell one another what has changed on any of them, along with other sums: a checksum of each
    variable (a second for a billion weights) costs little beside sending them, in float64, through the controller.

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
        """Record the state, which is the same on all workers now."""
        self._checksums = self._compute_checksums()

    def changed(self) -> Array:
        """Return a number for each variable, for the workers to add up: 1 where it has changed since the last time."""
        return np.array([now != before for now, before in zip(self._compute_checksums(), self._checksums)], np.float64)

    def average(self, name: str, changed: Array) -> None:
        """Average what has changed on any worker; all of them call it.

        Parameters
        ----------
        name : str
            Another one each time.
        changed : ndarray
            The sum of what all workers' `changed` returned.
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
