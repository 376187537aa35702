"""State of layers that is not trained: agreement on it, and its decay on N workers.

An epoch on N workers has N times fewer steps. During a fit BatchNormalization therefore uses
``momentum ** N``. The attribute ``momentum`` does not change, also in saved models.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from platoon_base import Worker, world_size
from platoon_base.dtypes import Array
from platoon_base.worker import (
    State,
    agree,
    agree_in_step,
    checksums,
    default_rule_of,
    warn_once,
)
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.marks import patch

log = logging.getLogger(__name__)


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
        now = checksums(self.variables)
        return np.array([new != before for new, before in zip(now, self._checksums)], np.float64)

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


_KERAS_3 = hasattr(keras, "ops")
_NAMES = "momentum", "renorm_momentum"


def watch_batch_normalization() -> None:
    """Patch Keras once, so that `decay_for` takes effect."""
    if _KERAS_3:
        if "__call__" not in vars(keras.layers.BatchNormalization):
            keras.layers.BatchNormalization.__call__ = _call
    else:
        patch(keras.backend, "moving_average_update", _of_all_workers)


def decay_for(model: Any, workers: int, retrace: bool = True) -> None:
    """Let statistics decay in each step as in ``workers`` steps of one process."""
    # Without `retrace` a step that was compiled for another number is kept for the next fit.
    layers = [layer for layer in _all_layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
    if layers and workers > 1:
        _report(layers, workers)
    if not _KERAS_3:
        if _shared or workers > 1:
            keras.backend.set_value(_number(), workers)
        return
    for layer in layers:
        _workers[layer] = workers
    if layers and retrace and _compiled_for.get(model, 1) != workers:
        _compiled_for[model] = workers
        if model.train_function is not None:
            model.make_train_function(force=True)


def _all_layers(model: Any) -> list[Any]:
    if _KERAS_3:
        return list(model._flatten_layers())
    return [inner for layer in getattr(model, "_layers", ()) for inner in (layer, *_all_layers(layer))]


def _report(layers: list[Any], workers: int) -> None:
    momenta = sorted({float(layer.momentum) for layer in layers})
    _log_once(
        f"BatchNormalization: moving statistics use momentum ** {workers}, "
        f"{', '.join(f'{momentum**workers:.4g}' for momentum in momenta)} instead of "
        f"{', '.join(f'{momentum:.4g}' for momentum in momenta)}, because with the same "
        f"batch_size each of the {workers} workers makes that many times fewer steps in an epoch"
    )
    if any(getattr(layer, "synchronized", False) for layer in layers):
        warn_once(
            "got BatchNormalization(synchronized=True): each worker normalizes by the rows of "
            "its own batch, because Keras synchronizes only the replicas of one process. If the "
            "batch of a worker is too small for that, pass a larger batch_size to fit, or use "
            "GroupNormalization"
        )


@functools.lru_cache(None)
def _log_once(text: str) -> None:
    log.info("%s", text)


# The number of workers for each layer, and the number that each model's step was compiled for.
_workers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_compiled_for: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _call(layer: Any, *args: Any, **options: Any) -> Any:
    with _raised(layer, _workers.get(layer, 1)):
        return super(keras.layers.BatchNormalization, layer).__call__(*args, **options)


@contextlib.contextmanager
def _raised(layer: Any, workers: int) -> Iterator[None]:
    own = {name: vars(layer)[name] for name in _NAMES if workers > 1 and name in vars(layer)}
    # Keras's setattr would take longer.
    vars(layer).update({name: value**workers for name, value in own.items()})
    try:
        yield
    finally:
        vars(layer).update(own)


# Keras 2 puts the update into the graph when a layer is called, before a fit.
_shared: list[Any] = []


def _number() -> Any:
    """Return the variable with the number of workers, which graphs of Keras 2 read."""
    if not _shared:
        _shared.append(keras.backend.variable(1.0, name="number of workers"))
    return _shared[0]


def _of_all_workers(plain: Any, variable: Any, value: Any, momentum: Any) -> Any:
    return plain(variable, value, momentum if world_size() == 1 else momentum ** _number())
