"""The optimizers of a model: their averages of gradients, as a GAN has several, and the state that a rule shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.gradients import DONE, VOTE, DistributedOptimizer, GradientAverage, average_of, plain_again
from platoon_plugins.keras.marks import is_marked


class ModelAverages:
    """Starts and ends fits and epochs for the `GradientAverage` of each optimizer of a model."""

    # All workers call the optimizers in the same order. A worker that has finished its epoch
    # repeats the calls of one batch, without gradients, until all workers have finished.

    def __init__(self, members: list[GradientAverage]) -> None:
        self.members = members
        self._calls: list[GradientAverage] = []
        self._pattern: list[GradientAverage] = members
        self._batches = 0

    def place(self, device: Any) -> None:
        for member in self.members:
            member.place(device)

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """Start a fit; with several optimizers, each shows its weights in its first step."""
        self._calls.clear()
        self._batches = 0
        if len(self.members) == 1:
            self.members[0].attach(policy, like)
            return
        for member in self.members:
            member.attach(policy, member.like, self._calls)

    def detach(self) -> None:
        for member in self.members:
            member.detach()

    def vote(self) -> None:
        for member in self.members:
            member.send(VOTE)

    @property
    def stops(self) -> bool:
        return any(member.stops for member in self.members)

    @property
    def on_device(self) -> bool:
        return any(member.on_device for member in self.members)

    def require_attached(self) -> None:
        for member in self.members:
            member.require_attached()

    def require_sound(self) -> None:
        for member in self.members:
            member.require_sound()

    def count(self, steps: int) -> None:
        self._batches += steps
        for member in self.members:
            member.count(steps)

    def program_started(self) -> None:
        for member in self.members:
            member.program_started()

    def join(self) -> list[int]:
        """Call without gradients until all workers end the epoch; return each rank's steps."""
        own = sum(member.steps for member in self.members)
        pattern = self._calls_of_a_batch()
        flags = [member.send(DONE) for member in self.members]
        for member in itertools.cycle(pattern):
            if member.is_last_call():
                break
            if len(self.members) > 1 and own % max(self._batches, 1):
                raise ConfigurationError(
                    f"got {own} steps of the optimizers in {self._batches} batches, and another "
                    "number of batches on another worker, so the next step is unknown: use the "
                    "same number of batches on all workers, for example with shard(..., "
                    'uneven="wrap") and a batch size that divides the number of rows'
                )
        for member, flag in zip(self.members, flags):
            member.send(flag)
            member.settle()
        steps: list[int] = self.members[0].worker.all_gather(np.array([own]))[:, 0].tolist()
        for member in self.members:
            member.steps = 0
        self._calls.clear()
        self._batches = 0
        return steps

    def _calls_of_a_batch(self) -> list[GradientAverage]:
        """Return the members in the order in which a batch of the latest epoch called them."""
        if self._calls:
            each = len(self._calls) // max(self._batches, 1)
            self._pattern = self._calls[: max(each, 1)]
        return self._pattern


_AVERAGES = "_platoon_averages"


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers of a model: first that of compile(), then those in its attributes."""
    found = [getattr(model, "optimizer", None)]
    for value in vars(model).values():
        found += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    found = [value for value in found if isinstance(value, keras.optimizers.Optimizer)]
    return list({id(optimizer): optimizer for optimizer in found}.values())


def with_inner(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and those inside it, as in a LossScaleOptimizer or a MultiOptimizer."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in [*([] if inner is None else [inner]), *(getattr(optimizer, "optimizers", None) or ())]:
        yield from with_inner(each)


def outer_optimizers(model: Any) -> list[Any]:
    """Return the optimizers of a model that are in no other one."""
    found = optimizers_of(model)
    inside = {id(inner) for outer in found for inner in with_inner(outer) if inner is not outer}
    return [each for each in found if id(each) not in inside]


def all_optimizers(model: Any) -> list[Any]:
    return [inner for outer in optimizers_of(model) for inner in with_inner(outer)]


def schedule_of(optimizer: Any) -> Any:
    """Return the LearningRateSchedule of an optimizer of Keras 3, or None."""
    schedules = getattr(keras.optimizers, "schedules", None)
    schedule = getattr(optimizer, "_learning_rate", None)
    return schedule if schedules is not None and isinstance(schedule, schedules.LearningRateSchedule) else None


def wrap_again(model: Any, worker: Worker) -> None:
    """Apply DistributedOptimizer to plain optimizers that are marked or contain a marked one."""
    # Copies and loaded models have marked plain optimizers. With "mixed_float16" `compile` wraps a
    # DistributedOptimizer in a LossScaleOptimizer, which would skip steps by its own gradients.
    if worker.global_size == 1:
        return
    for optimizer in outer_optimizers(model):
        inner = getattr(optimizer, "inner_optimizer", None)
        marked = is_marked(optimizer) or (inner is not None and is_marked(inner))
        if marked and average_of(optimizer) is None:
            if inner is not None:
                plain_again(inner)
            DistributedOptimizer(optimizer, worker=worker)


def average_of_model(model: Any) -> ModelAverages | None:
    """Return a model's `ModelAverages`; None for plain optimizers, raise if only some are."""
    optimizers = optimizers_of(model)
    averages = [average for average in map(average_of, optimizers) if average is not None]
    inside = {type(outer).__name__ for outer in optimizers for each in with_inner(outer) if average_of(each)}
    if not averages and inside:
        name = inside.pop()
        raise ConfigurationError(
            f"got a {name} around a DistributedOptimizer, with which workers would step "
            f"differently: wrap it the other way round, DistributedOptimizer({name}(...)), in "
            "compile()"
        )
    if len(set(averages)) != len(averages):
        raise ConfigurationError(
            "got two optimizers of a model that share an average of gradients, because one was "
            "made by from_config() of the other's class: call DistributedOptimizer on a plain "
            "optimizer for each"
        )
    # On torch a model has no optimizer before compile().
    compiled = getattr(model, "optimizer", None)
    only_compiled = averages in ([], [average_of(compiled)])
    _require_all(optimizers if only_compiled else [each for each in optimizers if each is not compiled], averages)
    if not averages:
        return None
    known: ModelAverages | None = getattr(model, _AVERAGES, None)
    if known is None or known.members != averages:
        known = ModelAverages(averages)
        object.__setattr__(model, _AVERAGES, known)
    return known


def _require_all(optimizers: list[Any], averages: list[Any]) -> None:
    plain = [type(optimizer).__name__ for optimizer in optimizers if average_of(optimizer) is None]
    if averages and plain:
        raise ConfigurationError(
            f"got a model with a DistributedOptimizer and a plain {plain[0]}, as in a GAN: the "
            "weights of the plain one would differ between workers; call DistributedOptimizer on "
            "each of the model's optimizers, or on none and synchronize with a rule: "
            "distribute(..., rule=EASGD())"
        )


def require_built(model: Any) -> None:
    """Raise if an optimizer has no moments yet, which could not be shared."""
    for optimizer in unbuilt(model):
        raise ConfigurationError(
            f"got a model whose optimizer {type(optimizer).__name__} is not built, and a rule "
            "that shares its moments: call optimizer.build(variables) with the trained variables "
            "before fit"
        )


def unbuilt(model: Any) -> list[Any]:
    return [optimizer for optimizer in optimizers_of(model) if not getattr(optimizer, "built", True)]


def continue_steps(model: Any, steps: int) -> None:
    """Let optimizers continue the step count of an earlier run, whose moments they have."""
    for optimizer in all_optimizers(model):
        count: Any = getattr(optimizer, "iterations", None)
        if hasattr(count, "assign") and not int(keras.ops.convert_to_numpy(count)):
            count.assign(steps)


def keeps_averages(model: Any) -> bool:
    """Return whether the optimizer averages weights; a fit leaves the averages in the model."""
    return bool(_averaging([getattr(model, "optimizer", None)]))


def begin_averages(model: Any) -> None:
    """Start averages from the weights before the first step: a rule would spread Keras's zeros."""
    for optimizer in _averaging(optimizers_of(model)):
        if not int(keras.ops.convert_to_numpy(optimizer.iterations)):
            _copy(optimizer._trainable_variables, optimizer._model_variables_moving_average)


def end_averages(model: Any) -> None:
    """Put the averages into the model, as Keras does at the end of a fit."""
    for optimizer in _averaging([getattr(model, "optimizer", None)]):
        _copy(optimizer._model_variables_moving_average, optimizer._trainable_variables)


def _averaging(optimizers: list[Any]) -> list[Any]:
    each = (inner for outer in optimizers for inner in with_inner(outer))
    return [inner for inner in each if getattr(inner, "use_ema", False) and inner.built]


def _copy(sources: Any, targets: Any) -> None:
    """Copy through NumPy: on JAX, ``assign`` of a variable would share memory."""
    for source, target in zip(sources, targets):
        target.assign(np.array(keras.ops.convert_to_numpy(source)))
