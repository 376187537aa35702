"""Agreement on the state of a model that is not trained, in each epoch or step of a loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.worker import State, agree, agree_in_step, checksums, default_rule_of
from platoon_plugins.keras.backends.base import Backend

__all__ = ["Statistics"]

Array = np.ndarray[Any, Any]


class Statistics:
    """Makes the workers agree on the variables that changed in an epoch."""

    # The `aggregation` of a variable says how: "mean", "sum" (the value before plus all changes) or
    # "only_first_replica". By default floats are averaged, and others are those of the first
    # worker. Checksums find the changed variables, as sending frozen weights in float64 would take
    # longer.

    def __init__(self, worker: Worker, backend: Backend) -> None:
        self._worker, self._backend = worker, backend
        self.variables: list[Any] = []
        self._checksums: list[int] = []
        # The bases of sums, by the variable's index.
        self._bases: dict[int, Array] = {}
        self._steps = 0
        # Flags of the variables that have changed in a loop.
        self._changing: Any = 0

    def start(self, model: Any) -> None:
        """Record the state, which is equal on all workers at the start of a fit or loop."""
        self.variables = [v for v in self._backend.statistics(model) if _rule_of(v) != "own"]
        self._checksums = [0] * len(self.variables)
        self._record(range(len(self.variables)))

    def changed(self) -> Array:
        """Return a flag for each variable: 1 if it has changed since the last agreement."""
        return np.array([now != before for now, before in zip(checksums(self.variables), self._checksums)], np.float64)

    def average(self, name: str, changed: Array) -> None:
        """Agree on the variables that changed on any worker; a collective call."""
        # `changed` is the sum of the flags over all workers; `name` is unique.
        numbers = np.flatnonzero(changed).tolist()
        if numbers:
            agree(self._states(numbers), self._worker, name)
            self._record(numbers)

    def _states(self, numbers: Iterable[int]) -> list[State]:
        return [State(self.variables[i], _rule_of(self.variables[i]), self._bases.get(i)) for i in numbers]

    def step_ends(self, model: Any) -> None:
        """Agree after a step of a loop; a collective call."""
        # All variables are checked only after 1, 2, 4, ... steps, as frozen weights may be large.
        self._backend.attach(model)
        self._steps += 1
        if not self._steps & (self._steps - 1):
            name = f"keras state that changes, step {self._steps}"
            self._changing = self._changing + self._worker.advanced.sum_arrays(name, [self.changed()]).arrays[0]
        numbers = np.flatnonzero(self._changing).tolist()
        if numbers:
            agree_in_step(self._states(numbers), self._worker)
            self._record(numbers)

    def _record(self, numbers: Iterable[int]) -> None:
        for i, now in zip(numbers, checksums([self.variables[i] for i in numbers])):
            self._checksums[i] = now
            if _rule_of(self.variables[i]) == "sum":
                self._bases[i] = np.array(self.variables[i].get_value(borrow=True))


def _rule_of(variable: Any) -> str:
    return getattr(variable, "rule", None) or default_rule_of(variable.get_value(borrow=True).dtype)
