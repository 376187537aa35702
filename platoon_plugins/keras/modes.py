"""The two modes of a fit: asynchronous and synchronous training."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.rules import Rule, overlap_of, shares_moments, waits
from platoon_base.schedule import EveryN
from platoon_base.worker import LossWatch, checksums, copy_values
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

__all__ = ["Asynchronous", "Mode", "Synchronous", "abandon_center"]

log = logging.getLogger(__name__)


class Mode:
    """How the workers of a fit train one model. ``rule`` is None for averaged gradients."""

    rule: Rule | None

    def moments(self, model: Any) -> list[Any]:
        """Return the state of the optimizers that is shared with the weights."""
        return []

    def set_participants(self, ranks: list[int]) -> None:
        """Record the participants."""

    def take_loss(self, loss: float) -> None:
        """Record the training loss of an epoch, over the data of all workers."""

    def leave_center(self) -> None:
        """Give the model the worker's own weights back."""

    def center(self) -> contextlib.AbstractContextManager[None]:
        """Give the model the center's weights within ``with``, in mid-epoch."""
        return contextlib.nullcontext()


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

    def __init__(self, worker: Worker, backend: Backend, rule: Rule, every_n_batches: int, policy: str) -> None:
        self.rule = rule
        self._worker, self._backend, self._policy = worker, backend, policy
        self._every_n_batches, self._period = every_n_batches, EveryN(every_n_batches)
        self._losses = LossWatch(worker.global_rank)
        self._epochs_over = 0
        self._participants: list[int] = []
        self._model: Any = None
        self._weights: list[Any] = []
        self._moments: list[Any] = []
        self._apply_constraints: Callable[[], object] | None = None
        self._swapped: contextlib.ExitStack | None = None
        self._entered_checksums: list[int] = []

    def describe(self, model: Any) -> str:
        return f"rule={self.rule!r}, every_n_batches={self._every_n_batches}"

    def moments(self, model: Any) -> list[Any]:
        if not shares_moments(self.rule):
            return []
        require_built(model)
        begin_averages(model)
        return self._backend.moments(model)

    def start(self, model: Any, participants: list[int]) -> None:
        """Start; the weights are shared already."""
        self._model, self._participants = model, participants
        self._weights = self._backend.weights(model)
        self._moments = self._backend.moments(model) if shares_moments(self.rule) else []
        self._apply_constraints = constraints_of(self._weights)
        # The rule does not apply constraints to the center in a checkpoint.
        if self._worker.resume_at.steps:
            self._constrain()

    def batches_done(self, count: int) -> None:
        """Synchronize if it is due; complete an overlapping round after its part of the period."""
        due = sum(self._period.due() for _ in range(count))
        overlap = overlap_of(self.rule)
        if due:
            self._sync(1.0)
        elif overlap and self._worker.advanced.round_under_way and self._period.is_past(overlap):
            self._backend.attach(self._model, only_weights=True)
            self._worker.advanced.complete_round()
            self._constrain()

    @property
    def stops(self) -> bool:
        votes = self._worker.advanced.stop_votes
        return bool(votes.voters()) and votes.passed(self._policy, self._participants)

    def vote(self) -> None:
        self._worker.advanced.stop_votes.cast()

    def epoch_ends(self) -> None:
        """Synchronize the batches since the last synchronization."""
        self._epochs_over += 1
        ended_by_a_stop = self._model.stop_training or self.stops
        if self._epochs_over == 1 and not self._period.periods and not ended_by_a_stop:
            log.warning(
                "rank %d: an epoch has %d batch%s, so every_n_batches=%d is never reached, and "
                "the workers synchronize only at the end of epochs: make it smaller (sync_every "
                "of prepare), or use longer epochs",
                self._worker.global_rank,
                self._period.count,
                "" if self._period.count == 1 else "es",
                self._every_n_batches,
            )
        self._sync(self._period.part, whole=True)
        self._period = EveryN(self._period.n)

    def set_participants(self, ranks: list[int]) -> None:
        self._participants = ranks

    def enter_center(self) -> None:
        """Give the model the center's weights, after all workers have synchronized."""
        # If the script ends by an exception, the back end can still import modules in atexit.
        if not _entered:
            atexit.unregister(_leave_all)
            atexit.register(_leave_all)
        _entered[self._worker] = self
        self._worker.average_hosts()
        self._swapped = contextlib.ExitStack()
        self._swapped.enter_context(self._worker.center_params())
        self._constrain()
        self._entered_checksums = self._checksums()

    def take_loss(self, loss: float) -> None:
        """Shorten steps if the loss, which is equal on all workers, has risen."""
        first = self._worker.global_rank == min(self._participants, default=0)
        if not self._losses.epoch_ends(loss, self.rule, tells=first):
            return
        said = self._worker.advanced.shorten_steps()
        if said and first:
            log.warning(
                "rank %d: the training loss is %.4g, more than twice its best, so steps are shortened: %s",
                self._worker.global_rank,
                loss,
                said,
            )

    def report(self) -> dict[str, float]:
        """Report whether a callback has changed the weights since `enter_center`."""
        return {"changed": float(self._swapped is not None and self._checksums() != self._entered_checksums)}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Copy weights that callbacks have changed to the center; then a barrier."""
        if any(report["changed"] for report in reports.values()):
            if reports[self._worker.global_rank]["changed"]:
                self.leave_center()
            self._worker.barrier(f"keras weights of callbacks {self._epochs_over}")

    def leave_center(self) -> None:
        """Restore the worker's own weights; changes by callbacks are copied to the center."""
        if self._swapped is None:
            return
        changed = self._checksums() != self._entered_checksums
        now = _copies(self._shared()) if changed else []
        self.leave_for_good()
        if changed:
            _set(self._shared(), now)
            self._worker.copy_to_global()
        elif waits(self.rule):  # Workers with fewer rounds start there too.
            self._worker.copy_to_local()
            self._constrain()

    @contextlib.contextmanager
    def center(self) -> Any:
        """Give the model the center's weights within the ``with`` block, in mid-epoch."""
        if self._swapped is not None:
            yield
            return
        self._backend.attach(self._model)
        with self._worker.center_params():
            self._constrain()
            yield

    def finish(self) -> None:
        self._backend.steps_are_over()
        if keeps_averages(self._model):
            self.leave_for_good()  # Keras has put the averages into the weights.
        self.pause()
        end_averages(self._model)

    def pause(self) -> None:
        """Stop sharing the weights; the model gets the center's."""
        self.leave_center()
        self._worker.copy_to_local()
        self._constrain()
        self._worker.release_shared_params()

    def abandon_center(self) -> None:
        """Clean up after a fit; the model keeps its current weights."""
        now = _copies(self._weights)
        self.leave_for_good()
        _set(self._backend.weights(self._model), now)

    def leave_for_good(self) -> None:
        """Restore the worker's own weights, discarding changes by callbacks."""
        if self._swapped is not None:
            self._swapped.close()
        self._swapped, self._entered_checksums = None, []
        _entered.pop(self._worker, None)

    def _sync(self, part: float, whole: bool = False) -> None:
        self._backend.attach(self._model, only_weights=True)
        if self.stops and not all(np.isfinite(values).all() for values in _copies(self._weights)):
            return  # TerminateOnNaN ends the fit: `on_nonfinite` must not raise.
        self._worker.sync_params(part=part, whole=whole)
        self._constrain()

    def _constrain(self) -> None:
        """Apply the constraints of weights, which the rule does not apply."""
        if self._apply_constraints is not None:
            self._apply_constraints()

    def _checksums(self) -> list[int]:
        """Return a checksum of each shared variable; copies would need more memory."""
        return checksums(self._shared())

    def _shared(self) -> list[Any]:
        return [*self._weights, *self._moments]


def _copies(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.array(variable.get_value(borrow=True)) for variable in variables]


def _set(variables: Sequence[Any], values: Sequence[np.ndarray[Any, Any]]) -> None:
    for variable, value in zip(variables, values):
        variable.set_value(value)


def abandon_center(worker: Worker) -> None:
    """Clean up after a fit that raised while the model had the center's weights."""
    if worker in _entered:
        _entered[worker].abandon_center()


def _leave_all() -> None:
    """Restore the own weights of all workers of this process at exit."""
    for worker, fit in list(_entered.items()):
        try:
            fit.leave_for_good()
        except PlatoonError as exc:
            log.debug("rank %d: the center stays in the model at the end: %s", worker.global_rank, exc)


# Fits whose models have the center's weights. The reference prevents garbage collection, which
# would restore the own weights.
_entered: dict[Worker, Asynchronous] = {}


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
                "got a train_step that does not call the optimizer's apply or stateless_apply, "
                "so the gradients of this epoch were not averaged: call "
                "self.optimizer.apply(gradients, trainable_variables) in it"
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
                "got a train_step that uses model.optimizer, a plain "
                f"{type(self._model.optimizer).__name__}, besides DistributedOptimizers, so its "
                "weights now differ between workers: call "
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
            "weights or optimizers of the workers differ at the end of an epoch, because a "
            "callback changes them on some ranks (%s) or the learning rates differ; all workers "
            "now use those of rank %d",
            changed or "none at its end",
            root,
        )
        copy_values(state_of(self._model, self._backend), self._worker, root)


def _described(optimizer: Any) -> str:
    config = {name: value for name, value in optimizer.get_config().items() if name not in _MAY_DIFFER}
    text = json.dumps(config, sort_keys=True, default=lambda value: type(value).__name__)
    return f"{type(optimizer).__name__}({text})"
