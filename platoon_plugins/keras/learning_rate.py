"""Learning rates for N workers: scaling, schedules and warm-up."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import keras

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.learning_rate import Warmup, scaled
from platoon_base.worker import warn_once
from platoon_plugins.keras import backends
from platoon_plugins.keras.optimizers import all_optimizers, schedule_of
from platoon_plugins.keras.standby import Hooks


def scale_learning_rate(learning_rate: float, *, how: str = "linear", worker: Worker | None = None) -> float:
    """Multiply a learning rate by the number of workers or its square root, for averaged gradients.

    Parameters
    ----------
    learning_rate : float
        The rate of a single process with the batch size of one worker.
    how : {"linear", "sqrt", "none"}
        "linear" for SGD and momentum, "sqrt" for Adam and RMSProp; see
        `platoon_base.learning_rate.scale_factor`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    float
        Unchanged for a single worker.
    """
    if callable(learning_rate):
        raise ConfigurationError(f"got {learning_rate!r}: pass a number, such as the schedule's initial learning rate")
    return scaled(learning_rate, (connect() if worker is None else worker).global_size, how)


def scale_schedule(schedule: Any, *, worker: Worker | None = None) -> Any:
    """Adapt a schedule written for one process, so that it ends at the same epoch on N workers.

    ::

        lr(k) := schedule(N k)        where k counts the steps of this worker

    With the same batch size, each worker makes 1/N of the steps of one process in an epoch. Do not
    scale a schedule that was written for batches N times as large.

    Parameters
    ----------
    schedule : keras.optimizers.schedules.LearningRateSchedule
        Only its argument is scaled; scale its learning rates by `scale_learning_rate`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    LearningRateSchedule
        A copy; for a single worker, the schedule itself. A model is saved with the plain schedule:
        to continue its training on N workers, compile it again with a scaled one.

    Examples
    --------
    >>> decay = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=50_000)  # doctest: +SKIP
    >>> sgd = keras.optimizers.SGD(scale_schedule(decay))                        # doctest: +SKIP
    >>> model.compile(DistributedOptimizer(sgd))                                 # doctest: +SKIP
    """
    if not hasattr(keras.optimizers, "schedules"):
        raise ConfigurationError(
            "Keras 2 has no LearningRateSchedule: a LearningRateScheduler counts epochs and needs no scaling; multiply "
            "the argument `decay` of an optimizer by connect().global_size"
        )
    base: Any = type(schedule)
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        raise ConfigurationError(
            f"got {schedule!r}: pass a LearningRateSchedule; a number is scaled by scale_learning_rate, and callbacks "
            "that count epochs need no scaling"
        )
    if hasattr(base, "steps_scaled_by"):
        raise ConfigurationError("got a schedule that is scaled already: scale it only once")
    size = (connect() if worker is None else worker).global_size
    if size == 1:
        return schedule

    def call(self: Any, step: Any) -> Any:
        return base.__call__(self, step * size)

    # Keras writes __class__ into a saved model: it must be that of the plain schedule.
    own_class = property(lambda self: base)
    scaled = copy.copy(schedule)
    scaled.__class__ = type(base.__name__, (base,), {"__call__": call, "__class__": own_class, "steps_scaled_by": size})
    return scaled


def warn_of_schedules(model: Any, worker: Worker, params: Mapping[str, Any]) -> None:
    """Warn on rank 0 if a schedule was not scaled and does not end with the fit."""
    for optimizer in all_optimizers(model):
        if worker.global_rank == 0:
            _warn_of_schedule(optimizer, worker.global_size, params)


def _warn_of_schedule(optimizer: Any, workers: int, params: Mapping[str, Any]) -> None:
    fewer = f"an epoch has {workers} times fewer steps than in one process with the same batch size"
    if getattr(optimizer, "initial_decay", 0):  # Keras 2 only.
        warn_once(
            f"the optimizer {type(optimizer).__name__} has decay={optimizer.initial_decay:g}, "
            f"which acts at each step of its own worker, and {fewer}: multiply it by "
            "connect().global_size, unless you have done so"
        )
    schedule = schedule_of(optimizer)
    if schedule is None or hasattr(type(schedule), "steps_scaled_by"):
        return
    name, ends_at, epochs = type(schedule).__name__, _last_step(schedule), int(params.get("epochs") or 0)
    steps = (steps_in_epoch(params) or 0) * epochs
    remedy = "pass scale_schedule(schedule), which ends with the fit"
    if not (ends_at and steps):
        warn_once(
            f"the schedule {name} of the learning rate counts the steps of its own worker, and "
            f"{fewer}: {remedy}, unless it was written for these steps"
        )
    # The tolerance is one step per epoch, for a smaller last batch.
    elif ends_at > steps + epochs:
        warn_once(
            f"the schedule {name} of the learning rate ends at step {ends_at:g}, this fit has "
            f"{steps} steps on each of its {workers} workers, and {fewer}: {remedy}"
        )


def _last_step(schedule: Any) -> float:
    """Return the step at which a schedule of Keras ends; 0 if it has no known end."""
    name = type(schedule).__name__
    if name == "PiecewiseConstantDecay":
        return float(max(schedule.boundaries))
    if name not in ("CosineDecay", "PolynomialDecay") or getattr(schedule, "cycle", False):
        return 0.0
    return float(schedule.decay_steps + (getattr(schedule, "warmup_steps", None) or 0))


class LearningRateWarmup(Hooks):
    """Raise the learning rate batch by batch from that of one worker to that of N.

    It follows the equation of `platoon_base.learning_rate.Warmup`, which is Horovod's for
    ``how="linear"``. A single worker uses ``initial_lr`` from the start.

    Parameters
    ----------
    initial_lr : float
        The learning rate after the warm-up, such as ``scale_learning_rate(0.1)``.
    warmup_epochs : float
    steps_per_epoch : int, optional
        The default is that of ``fit``; if it is unknown, the rate is raised epoch by epoch.
    how : {"linear", "sqrt", "none"}
        How ``initial_lr`` was scaled.
    worker : Worker, optional
        The default is ``connect()``.

    References
    ----------
    Goyal et al.: Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv 1706.02677,
    section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        steps_per_epoch: int | None = None,
        *,
        how: str = "linear",
        worker: Worker | None = None,
    ) -> None:
        super().__init__()
        size = (connect() if worker is None else worker).global_size
        self._warmup = Warmup(initial_lr, warmup_epochs, size, how)
        self._steps_per_epoch = steps_per_epoch
        self._backend = backends.current()
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        steps = self._steps_per_epoch or steps_in_epoch(self.params or {})
        if steps and not self._warmup.finished:
            self._set(self._epoch + batch / steps)

    def _set(self, epochs: float) -> None:
        rate = self._warmup.at(epochs)
        if rate is None:
            return
        try:
            self._backend.set_learning_rate(self.owner, rate)
        except TypeError as exc:
            raise ConfigurationError(
                "the optimizer has a LearningRateSchedule, which a callback cannot change: "
                "compile with a number, or put the warm-up into the schedule"
            ) from exc


def steps_in_epoch(params: Mapping[str, Any]) -> int | None:
    """Return the batches of an epoch, from the parameters of callbacks; None if unknown."""
    if params.get("steps"):
        return int(params["steps"])
    if params.get("samples") and params.get("batch_size"):  # Keras 2, on arrays.
        return -(-int(params["samples"]) // int(params["batch_size"]))
    return None
