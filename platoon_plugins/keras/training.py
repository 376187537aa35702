"""One distributed fit on one worker: the work at each hook of Keras."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from platoon_base import Worker
from platoon_base.devices import warn_if_not_on_device
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule, at_period, default_period, default_rule, shares_moments
from platoon_base.worker import Fit, start_training
from platoon_plugins.keras import marks, seeds
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.data import is_sharded
from platoon_plugins.keras.evaluation import Evaluation
from platoon_plugins.keras.marks import unmark
from platoon_plugins.keras.model_state import (
    end_alike,
    first_values,
    require_distributable,
    require_new,
    require_no_other_average,
    require_stateless,
    values_were_set,
)
from platoon_plugins.keras.modes import Asynchronous, Mode, Synchronous
from platoon_plugins.keras.optimizers import (
    all_optimizers,
    average_of_model,
    continue_steps,
    optimizers_of,
    unbuilt,
    wrap_again,
)
from platoon_plugins.keras.parts import is_part, leaves
from platoon_plugins.keras.read_order import first_batches_agree
from platoon_plugins.keras.reshuffling import LostRows, Reshuffling
from platoon_plugins.keras.resuming import Resumption, agree_to_resume, given_initial_epoch, keep_epochs, warn_if_anew
from platoon_plugins.keras.same_data import data_of_fit, described, warn_if_not_sharded
from platoon_plugins.keras.statistics import Statistics, decay_for
from platoon_plugins.keras.stopping import Stopping
from platoon_plugins.keras.torch_loaders import set_sampler_epoch


class Settings(NamedTuple):
    """The settings of a fit; ``every_n_batches`` is None for the default of the rule."""

    rule: Rule | str | None
    every_n_batches: int | None
    policy: str
    on_nonfinite: str


class Training:
    """One fit, called by this package's callbacks before and after the user's."""

    # All workers make the collective calls in the same order: at the start of the fit; at the first
    # of on_test_begin and on_epoch_end after an epoch's batches; at the end of an evaluation, if
    # all evaluate; after on_epoch_end of the user's callbacks; at the end of the fit. Make it
    # before callbacks change the model, which the constructor checks.

    def __init__(self, worker: Worker, backend: Backend, settings: Settings, model: Any) -> None:
        self._worker, self._backend, self._settings, self._model = worker, backend, settings, model
        Fit.abandon(worker)
        if settings.rule is None or (settings.rule == "auto" and not _was_trained_by_rule(model)):
            wrap_again(model, worker)
        average = require_distributable(model, backend)
        warn_if_not_on_device(worker.device, backend.weights(model))
        self._data = data_of_fit(model)
        if self._data is not None and (is_sharded(self._data[0]) or any(map(is_part, leaves(self._data)))):
            require_stateless(model)
        self._reshuffling = Reshuffling(worker, model)
        self._mode = self._choose_mode(average)
        # This may replace the compiled step, which is watched next.
        decay_for(model, worker.global_size)
        self.evaluation = Evaluation(worker, backend, model, average)
        self._statistics = Statistics(worker, backend)
        self._lost_rows = LostRows(worker, model)
        self.stopping = Stopping(worker, model, self._mode)
        # Batches in this epoch: counted ones, and the last one after the current ones.
        self._counted = self._last = 0
        # The number of batches in an epoch, if Keras knows it.
        self._steps: int | None = None
        self._closed = False
        self._shares_next = False
        self._resumption: Resumption | None = None
        self._epochs = 0
        self._known: list[Any] = []
        self.begun = False

    @property
    def leads(self) -> bool:
        return self._worker.global_rank == min(self._mode.ranks, default=0)

    def _choose_mode(self, average: Any) -> Mode:
        rule, worker, backend, policy = self._settings.rule, self._worker, self._backend, self._settings.policy
        if average is not None:
            if rule not in ("auto", None):
                raise ConfigurationError(
                    f"got rule={rule!r} and a DistributedOptimizer, which would synchronize the "
                    "workers twice: pass rule=None for averaged gradients, or compile with the "
                    "plain optimizer for the rule"
                )
            return Synchronous(worker, backend, self._model, average, policy)
        if rule is None:
            raise ConfigurationError(
                "got rule=None and a plain optimizer, so each worker would train its own model: "
                "compile with DistributedOptimizer(optimizer), or pass a rule such as "
                "rule=EASGD()"
            )
        if rule == "auto" and not _was_trained_by_rule(self._model):
            require_new(backend.steps_taken(self._model))
        # This builds the optimizers.
        backend.optimizer_state(self._model)
        require_distributable(self._model, backend)
        chosen, period = self._resolved(rule)
        require_no_other_average(self._model, chosen, worker.advanced.several_hosts)
        return Asynchronous(worker, backend, self._model, at_period(chosen, period), period, policy)

    def _resolved(self, rule: Any) -> tuple[Rule, int]:
        period = self._settings.every_n_batches
        if rule == "auto":
            wanted = default_period("auto") if period is None else period
            several_steps = (getattr(self._model, "steps_per_execution", None) or 1) > 1
            dtypes = [v.get_value(borrow=True).dtype for v in self._backend.weights(self._model)]
            rule = default_rule(None if several_steps or unbuilt(self._model) else wanted, dtypes)
        return rule, default_period(rule) if period is None else period

    def require_no_swap_at_epochs(self) -> None:
        """Raise if there is a rule, which would take the averages of SwapEMAWeights for weights."""
        if self._mode.rule is not None:
            raise ConfigurationError(
                "got SwapEMAWeights(swap_on_epoch=True) and a rule, which restores the weights "
                "between two epochs: leave swap_on_epoch out (evaluations and the model after "
                "fit have the average anyway), or compile with DistributedOptimizer(optimizer)"
            )

    # The start of a fit.

    def start(self, epochs: int | None) -> None:
        """Start the fit, after the user's callbacks, which may restore a checkpoint."""
        self._epochs = epochs or 0
        self._start(epochs, self._after_rendezvous)
        self._resume()
        self._random_state = seeds.state(), self._backend.random_state()
        self._backend.seed(seeds.vary(self._worker.global_rank))
        self._backend.vary_noise(self._model, self._worker.global_rank)
        self.begun = True

    def _start(self, epochs: int | None, once_met: Callable[[list[int]], None] | None = None) -> None:
        """Copy the state of the first worker to all, and share the trainable weights."""
        worker, backend, model, settings = self._worker, self._backend, self._model, self._settings
        alike = described({"epochs": epochs, **backend.compiled_with(model)})
        how = f"{self._mode.describe()}, {alike}"
        self._shares_next = False
        try:
            self._mode.ranks = start_training(
                worker,
                "keras fit",
                "fit",
                values=first_values(model, backend),
                settings=f"distribute({how}, policy={settings.policy!r}){_precision(model)}",
                rule=self._mode.rule,
                parameters=backend.weights(model),
                moments=self._mode.moments(),
                on_nonfinite=settings.on_nonfinite,
                once_met=once_met,
            )
        finally:
            # This holds even if the wait for the others was interrupted.
            if self._shares_next and worker.advanced.shares:
                marks.sharing.add(worker)
        if self._mode.rule is not None:
            for each in all_optimizers(model):
                # An optimizer that trains with a rule no longer averages gradients.
                unmark(each)
        if values_were_set(model):
            backend.watch_losses(model, average_of_model(model))
        self._mode.begin(self._mode.rule, self._mode.every_n)
        self._statistics.start(model)
        self._known = self._trained()

    def _trained(self) -> list[Any]:
        return [*self._backend.weights(self._model), *optimizers_of(self._model)]

    def epoch_begun(self) -> None:
        """Share weights that callbacks have made trainable or added since the last epoch."""
        others = _others(self._trained(), self._known)
        if self._mode.rule is None and _others(others, self._backend.weights(self._model)):
            raise ConfigurationError(
                "got a model that a callback has compiled again during a fit, so the gradients "
                "of its new optimizer would not be averaged: end this fit, compile, and call fit "
                'again, or train with mode="async" of prepare'
            )
        if others:
            self._mode.end()
            self._start(self._epochs)
            self._backend.watch_losses(self._model, average_of_model(self._model))
            self._backend.vary_noise(self._model, self._worker.global_rank)

    def _require_known(self) -> None:
        others = _others(self._trained(), self._known)
        # Gradients of known variables are averaged even if they become trainable now.
        if self._mode.rule is None:
            others = _others(others, self._statistics.variables)
        if others:
            raise ConfigurationError(
                f"got {getattr(others[0], 'name', others[0])}, which was added, compiled or made "
                "trainable in the middle of an epoch: the workers synchronize the weights that "
                "exist when an epoch starts, so each has trained it separately since. Do this in "
                "on_epoch_begin or on_epoch_end of a callback, or between two fits"
            )

    def _resume(self) -> None:
        """Make Keras start at the resumed epoch; the model already has the checkpoint's center."""
        backend, model = self._backend, self._model
        restored = backend.initial_epoch(model)
        self._restored_epoch = restored
        if self._resumption is not None:
            given = max(restored, given_initial_epoch(model))
            backend.resume_at(model, self._resumption.first_epoch(self._epochs, given))
            if shares_moments(self._mode.rule):
                continue_steps(model, self._worker.resume_at.steps)
        elif self._mode.rule is None:
            warn_if_anew(self._worker, max(restored, given_initial_epoch(model)))

    def _begun_at_its_epoch(self) -> None:
        """Reset the first epoch that `_resume` has set, which later fits would use."""
        if self._resumption is not None:
            self._backend.resume_at(self._model, self._restored_epoch)
            self._resumption = None

    def _after_rendezvous(self, participants: list[int]) -> None:
        _release_earlier(self._worker, shares_next=self._mode.rule is not None)
        marks.trained.add(self._model)
        # This is a collective call: other workers may have a center.
        if self._backend.honors_initial_epoch:
            self._resumption = agree_to_resume(self._worker, self._mode.rule is not None)
        if self._mode.rule is not None:
            self._shares_next = True
            train_by_rule(self._model)
        warn_if_not_sharded(self._data, self._worker)
        self._reshuffling.agree()

    # Training.

    def epoch_begins(self, epoch: int, params: Mapping[str, Any]) -> None:
        """Record the start of an epoch; Keras has reset all metrics."""
        self._begun_at_its_epoch()
        # Until here, later callbacks, such as a tuner's, see the center too.
        self._mode.leave()
        self.evaluation.epoch_begins(epoch)
        if self._data is not None:
            set_sampler_epoch(self._data[0], epoch)
        seed = seeds.of_epoch(epoch, self._worker.global_rank)
        if seed is not None:
            self._backend.seed(seed, self._model)
        self._reshuffling.epoch_begins(epoch)
        self._epoch, self._counted, self._last, self._closed = epoch, 0, 0, False
        self._steps = params.get("steps")
        report_epoch_begin(self._worker, epoch, params)

    def batch_begins(self, batch: int) -> None:
        """Count the batches so far, synchronize if it is due, and stop if the votes suffice."""
        several = getattr(self._model, "steps_per_execution", None) or 1
        left = (self._steps or 0) - batch  # The last execution may be shorter.
        self._last = batch + (min(several, left) if left > 0 else several)
        self._count_to(batch)
        self.stopping.batch_begins()
        # TensorFlow cannot end its threads within a data set that calls Python.
        if keras.backend.backend() != "tensorflow" and not first_batches_agree(self._worker, batch):
            self.stopping.end_epoch()

    def _count_to(self, batches: int) -> None:
        new = batches - self._counted
        if new > 0:
            self._counted = batches
            self._worker.progress(steps=new)
            self._mode.step(new)

    # Evaluation, which in a fit has the center's weights.

    def test_begins(self) -> None:
        self._close_batches(evaluates=True)
        if self.evaluation.all_evaluate:
            self._lost_rows.before_validation(self._epoch, self._mode.ranks)
        self.evaluation.test_begins()

    # The end of an epoch.

    def epoch_ends(self, logs: dict[str, Any]) -> None:
        """Put the values over all workers into ``logs``, before other callbacks see them."""
        self._close_batches(evaluates=False)
        self.evaluation.fill(logs)
        self._mode.take_loss(float(logs.get("loss", float("nan"))))
        report_logs(self._worker, logs, self.leads)
        if self.leads:
            evaluation = self.evaluation
            self._lost_rows.report(self._epoch, self._mode.ranks, evaluation.ranks, evaluation.all_evaluate)

    def callbacks_end_epoch(self, logs: Mapping[str, Any] | None) -> None:
        led = self.leads
        self.stopping.epoch_ends(self._epoch)
        if self.leads and not led:  # The lost leader may not have reported.
            report_logs(self._worker, logs, True)
        if self._mode.rule is not None:
            keep_epochs(self._worker, self._epoch + 1, self._epochs if self.stopping.voted_to_end else 0)

    def _close_batches(self, evaluates: bool) -> None:
        """Wait for all workers at the end of an epoch's batches."""
        if self._closed:
            return
        self._closed = True
        self._count_to(self._last)
        self._require_known()
        self._mode.evaluation_begins(functools.partial(self._meet, evaluates))

    def _meet(self, evaluates: bool) -> list[int]:
        changed = self.evaluation.add_up_training(evaluates, self._statistics.changed(), self._mode)
        self._statistics.average(f"keras statistics {self._epoch}", changed)
        return self.evaluation.ranks

    # The end of a fit.

    def finish(self) -> None:
        self.stopping.require_decided_together()
        self._begun_at_its_epoch()
        self._mode.finish()
        end_alike(self._model, self._backend, self._worker)
        marks.sharing.discard(self._worker)
        self.evaluation.end()
        decay_for(self._model, 1, retrace=False)
        self._data = None
        self._reshuffling.end()
        plain, own = self._random_state
        seeds.go_on(plain)
        self._backend.restore_random_state(own, self._worker.seed + seeds.fits())
        self.begun = False

    def center(self) -> contextlib.AbstractContextManager[None]:
        return self._mode.center() if self.begun else contextlib.nullcontext()


def report_epoch_begin(worker: Worker, epoch: int, params: Mapping[str, Any]) -> None:
    worker.advanced.announce(epoch=epoch + 1, last_epoch=params.get("epochs"), epoch_steps=params.get("steps"))


def report_logs(worker: Worker, logs: Mapping[str, Any] | None, leads: bool = True) -> None:
    """Report the loss of an epoch to the launcher, and on the leader all its ``logs``."""
    values = {} if logs is None else logs
    worker.progress(loss=float(values.get("loss", float("nan"))))
    if leads:
        _ = worker.is_leader  # Reading it records a new leader.
        worker.report({name: value for name, value in values.items() if isinstance(value, (int, float))})


def _release_earlier(worker: Worker, shares_next: bool) -> None:
    """Release parameters of an interrupted fit; raise if the script itself shares some."""
    if worker in marks.sharing or not worker.advanced.shares:
        worker.release_shared_params()
        marks.sharing.discard(worker)
    elif shares_next:
        raise ConfigurationError(
            "this script shares parameters with init_shared_params, and a job has one center at "
            "a time: call release_shared_params on every worker before fit"
        )


def _precision(model: Any) -> str:
    """Return the dtype policy of a model as a text; empty on Keras 2."""
    policy = getattr(getattr(model, "dtype_policy", None), "name", "")
    return f" in {policy}" if policy else ""


def train_by_rule(model: Any) -> None:
    """Let ``rule="auto"`` be the default rule for these optimizers in later fits."""
    _trained_by_rule.update(optimizers_of(model))


def _was_trained_by_rule(model: Any) -> bool:
    return any(optimizer in _trained_by_rule for optimizer in optimizers_of(model))


def _others(variables: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    ids = {id(getattr(each, "variable", each)) for each in known}
    return [each for each in variables if id(getattr(each, "variable", each)) not in ids]


# Optimizers that a fit has used with a rule.
_trained_by_rule: weakref.WeakSet[Any] = weakref.WeakSet()
