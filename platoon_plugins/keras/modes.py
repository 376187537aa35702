"""The two modes of a fit: asynchronous and synchronous training."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule, shares_moments
from platoon_base.worker import Fit, checksums, copy_values
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.gradients import average_of
from platoon_plugins.keras.model_state import state_checksum, state_of
from platoon_plugins.keras.optimizers import (
    ModelAverages,
    begin_averages,
    end_averages,
    keeps_averages,
    optimizers_of,
    require_built,
)
from platoon_plugins.keras.same_data import described

log = logging.getLogger(__name__)


class Mode(Fit):
    """How the workers of a fit train one model. ``rule`` is None for averaged gradients."""

    def describe(self) -> str:
        """Return the settings that must be the same on all workers."""
        raise NotImplementedError

    def report(self) -> dict[str, float]:
        """Return what the other workers need to know at the end of an epoch."""
        raise NotImplementedError

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Make the models equal by the reports of all ranks; a collective call."""
        raise NotImplementedError

    def moments(self) -> list[Any]:
        """Return the state of the optimizers that is shared with the weights."""
        return []

    def finish(self) -> None:
        """End the fit, after the user's callbacks."""
        self.end()


def constraints_of(weights: Sequence[Any]) -> Callable[[], object] | None:
    """Return a function that applies the constraints of `Backend.weights`; None without any."""
    found = [(weight, getattr(getattr(weight, "variable", weight), "constraint", None)) for weight in weights]
    constrained = [(weight, constraint) for weight, constraint in found if constraint is not None]
    if not constrained:
        return None
    if not hasattr(keras, "ops"):  # Constraints of Keras 2 are symbolic.
        compiled = keras.backend.function([], [], updates=[(weight, each(weight)) for weight, each in constrained])
        return lambda: compiled([])

    # Constraints take variables. Those of the model may be empty within an epoch on JAX.
    passed = [keras.Variable(weight.get_value(), trainable=False) for weight, _ in constrained]

    def apply() -> None:
        for variable, (weight, constraint) in zip(passed, constrained):
            variable.assign(weight.get_value())
            weight.set_value(np.array(keras.ops.convert_to_numpy(constraint(variable))))

    return apply


class Asynchronous(Mode):
    """Mode in which each worker synchronizes its own weights with the center every N batches."""

    syncs_at_evaluations = True

    def __init__(
        self, worker: Worker, backend: Backend, model: Any, rule: Rule, every_n_batches: int, policy: str
    ) -> None:
        super().__init__(worker, policy=policy)
        self.rule, self.every_n = rule, every_n_batches
        self._backend, self._model = backend, model
        self._weights: list[Any] = []
        self._moments: list[Any] = []
        self._apply_constraints: Callable[[], object] | None = None

    def describe(self) -> str:
        return f"rule={self.rule!r}, every_n_batches={self.every_n}"

    def moments(self) -> list[Any]:
        if not shares_moments(self.rule):
            return []
        require_built(self._model)
        begin_averages(self._model)
        return self._backend.moments(self._model)

    def begin(self, rule: Rule | None, every_n: int | None = None) -> None:
        self._weights = self._backend.weights(self._model)
        self._moments = self._backend.moments(self._model) if shares_moments(rule) else []
        self._apply_constraints = constraints_of(self._weights)
        super().begin(rule, every_n)

    def is_ready(self) -> bool:
        self._backend.attach(self._model, only_weights=True)
        # TerminateOnNaN ends the fit: `on_nonfinite` must not raise.
        return not self.stops or all(np.isfinite(weight.get_value(borrow=True)).all() for weight in self._weights)

    def values_changed(self) -> None:
        """Apply the constraints of weights, which the rule does not apply."""
        if self._apply_constraints is not None:
            self._apply_constraints()

    def marks(self) -> list[int]:
        """Return a checksum of each shared variable; copies would need more memory."""
        return checksums([*self._weights, *self._moments])

    def report(self) -> dict[str, float]:
        """Report whether a callback has changed the weights in the center."""
        return {"changed": float(self.has_new_values)}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Copy weights that callbacks have changed to the center; then a barrier."""
        if any(report["changed"] for report in reports.values()):
            if reports[self.worker.global_rank]["changed"]:
                self.leave()
            self.worker.barrier("keras weights of callbacks")

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        if not self.in_center:
            self._backend.attach(self._model)
        with super().center():
            yield

    def finish(self) -> None:
        self._backend.steps_are_over()
        if keeps_averages(self._model):
            self.leave(keep=True)  # Keras has put the averages into the weights.
        self.end()
        end_averages(self._model)


_MAY_DIFFER = ("name", "learning_rate")  # All workers get the learning rate of rank 0.


class Synchronous(Mode):
    """Mode in which averaged gradients keep the models equal, unless callbacks change some."""

    def __init__(self, worker: Worker, backend: Backend, model: Any, average: ModelAverages, policy: str) -> None:
        super().__init__(worker, policy=policy)
        self._backend, self._model, self._average = backend, model, average
        self._batches = self._plain_steps = 0

    def describe(self) -> str:
        optimizers = ", ".join(map(_described, optimizers_of(self._model)))
        return f"rule=None, optimizer={optimizers}, loss={described(self._model.loss)}"

    def begin(self, rule: Rule | None, every_n: int | None = None) -> None:
        like = [weight.get_value(borrow=True) for weight in self._backend.weights(self._model)]
        self._backend.place_gradients(self._model, self._average, self.worker)
        self._average.attach(self.policy, like)
        self._plain_steps = self._steps_of_a_plain_optimizer()
        super().begin(rule, every_n)

    def step(self, count: int = 1, arrays: Any = None) -> None:
        """Count batches; raise the error of an earlier call, if any."""
        self._average.require_sound()
        self._average.count(count)
        self._batches += count

    @property
    def stops(self) -> bool:
        """Whether the votes sent with the latest gradients suffice to end the fit."""
        if not self._average.on_device:
            self._backend.settle()  # Otherwise workers might see votes of different steps.
        self._average.require_sound()  # In the next step JAX would raise another error.
        return self._average.stops

    def cast(self) -> None:
        self._average.vote()

    def end_round(self) -> None:
        """Wait for all workers; those with fewer batches get the weights of the others."""
        self._backend.settle()
        self._average.require_sound()
        steps = self._average.join()
        self._require_no_plain_steps()
        if self._batches and not any(steps):
            raise ConfigurationError(
                "got a train_step that does not call the optimizer's apply or stateless_apply, "
                "so the gradients of this epoch were not averaged: call "
                "self.optimizer.apply(gradients, trainable_variables) in it"
            )
        self._batches = 0
        if len(set(steps)) > 1:
            # The statistics are averaged over all workers next.
            copy_values(
                state_of(self._model, self._backend, statistics=False), self.worker, root=steps.index(max(steps))
            )

    def _steps_of_a_plain_optimizer(self) -> int:
        """Return the steps of model.optimizer if it is plain beside DistributedOptimizers."""
        averaged = average_of(self._model.optimizer) is not None
        return 0 if averaged else self._backend.steps_taken(self._model)

    def _require_no_plain_steps(self) -> None:
        if self._steps_of_a_plain_optimizer() != self._plain_steps:
            raise ConfigurationError(
                "got a train_step that uses model.optimizer, a plain "
                f"{type(self._model.optimizer).__name__}, besides DistributedOptimizers, so its "
                "weights now differ between workers: call "
                "compile(optimizer=DistributedOptimizer(...)) with it too"
            )

    # Shared parameters, if any, belong to the script: an evaluation leaves them alone.

    def enter(self) -> None:
        self._marks = self.marks()

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        yield

    def end(self, meet: Any = None) -> bool:
        self._average.detach()  # Further steps are refused.
        return super().end(meet)

    def marks(self) -> int:
        return state_checksum(self._model, self._backend)

    def report(self) -> dict[str, float]:
        """Report a checksum of the model's state, and whether callbacks have changed it."""
        left = self.marks()
        return {"checksum": float(left), "changed": float(left != self._marks)}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        if len({values["checksum"] for values in reports.values()}) == 1:
            return
        changed = [rank for rank, values in reports.items() if values["changed"]]
        root = min(changed, default=0)
        log.warning(
            "weights or optimizers of the workers differ at the end of an epoch, because a "
            "callback changes them on some ranks (%s) or the learning rates differ; all workers "
            "now use those of rank %d",
            changed or "none at its end",
            root,
        )
        copy_values(state_of(self._model, self._backend), self.worker, root)


def _described(optimizer: Any) -> str:
    config = {name: value for name, value in optimizer.get_config().items() if name not in _MAY_DIFFER}
    text = json.dumps(config, sort_keys=True, default=lambda value: type(value).__name__)
    return f"{type(optimizer).__name__}({text})"
