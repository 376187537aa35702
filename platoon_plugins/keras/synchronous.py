"""Synchronous training: all workers make every step together, with averaged gradients."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.worker import copy_values
from platoon_plugins.keras.backends.base import Backend
from platoon_plugins.keras.gradients import average_of
from platoon_plugins.keras.mode import Mode
from platoon_plugins.keras.model_averages import ModelAverages
from platoon_plugins.keras.model_state import state_checksum, state_of
from platoon_plugins.keras.optimizers import optimizers_of
from platoon_plugins.keras.same_data import described

__all__ = ["Synchronous"]

log = logging.getLogger(__name__)

_MAY_DIFFER = ("name", "learning_rate")  # All workers get the learning rate of rank 0.


class Synchronous(Mode):
    """Mode in which averaged gradients keep the models equal, unless callbacks change some."""

    rule = None

    def __init__(self, worker: Worker, backend: Backend, average: ModelAverages, policy: str) -> None:
        self._worker, self._backend, self._average, self._policy = worker, backend, average, policy
        self._model: Any = None
        self._batches = 0
        self._found = self._plain_steps = 0

    def describe(self, model: Any) -> str:
        optimizers = ", ".join(map(_described, optimizers_of(model)))
        return f"rule=None, optimizer={optimizers}, loss={described(model.loss)}"

    def start(self, model: Any, participants: list[int]) -> None:
        self._model = model
        like = [weight.get_value(borrow=True) for weight in self._backend.weights(model)]
        self._backend.place_gradients(model, self._average, self._worker)
        self._average.attach(self._policy, like)
        self._plain_steps = self._steps_of_a_plain_optimizer()

    def batches_done(self, count: int) -> None:
        """Record training batches; raise the error of an earlier call, if any."""
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

    def vote(self) -> None:
        self._average.vote()

    def epoch_ends(self) -> None:
        """Wait for all workers; those with fewer batches get the weights of the others."""
        self._backend.settle()
        self._average.require_sound()
        steps = self._average.join()
        self._require_no_plain_steps()
        if self._batches and not any(steps):
            raise ConfigurationError(
                "got a train_step that does not call the optimizer's apply or stateless_apply: the gradients of this "
                "epoch were not averaged; let it call self.optimizer.apply(gradients, trainable_variables)"
            )
        self._batches = 0
        if len(set(steps)) > 1:
            # The statistics are averaged over all workers next.
            copy_values(
                state_of(self._model, self._backend, statistics=False), self._worker, root=steps.index(max(steps))
            )

    def _steps_of_a_plain_optimizer(self) -> int:
        """Return the steps of model.optimizer if it is plain beside DistributedOptimizers."""
        averaged = average_of(self._model.optimizer) is not None
        return 0 if averaged else self._backend.steps_taken(self._model)

    def _require_no_plain_steps(self) -> None:
        if self._steps_of_a_plain_optimizer() != self._plain_steps:
            raise ConfigurationError(
                f"got a train_step that uses model.optimizer, a plain {type(self._model.optimizer).__name__}, beside "
                "DistributedOptimizers: what it trains is different on each worker now; call "
                "compile(optimizer=DistributedOptimizer(...)) with it too"
            )

    def enter_center(self) -> None:
        """Record a checksum of the model's state before the callbacks."""
        self._found = state_checksum(self._model, self._backend)

    def pause(self) -> None:
        """Make the optimizer refuse steps until it is attached again."""
        self._average.detach()

    def finish(self) -> None:
        self.pause()

    def report(self) -> dict[str, float]:
        """Report a checksum of the model's state, and whether callbacks have changed it."""
        left = state_checksum(self._model, self._backend)
        return {"checksum": float(left), "changed": float(left != self._found)}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        if len({values["checksum"] for values in reports.values()}) == 1:
            return
        changed = [rank for rank, values in reports.items() if values["changed"]]
        root = min(changed, default=0)
        log.warning(
            "weights or optimizers of the workers differ at the end of an epoch, as a callback changes them on some "
            "ranks (%s) or the learning rates are not the same; those of rank %d are taken by all",
            changed or "none at its end",
            root,
        )
        copy_values(state_of(self._model, self._backend), self._worker, root)


def _described(optimizer: Any) -> str:
    config = {name: value for name, value in optimizer.get_config().items() if name not in _MAY_DIFFER}
    text = json.dumps(config, sort_keys=True, default=lambda value: type(value).__name__)
    return f"{type(optimizer).__name__}({text})"
