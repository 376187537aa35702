"""Learning rates for N workers: scaling with their number, schedules and warm-up."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from blocks.extensions import SimpleExtension
from blocks.extensions.training import SharedVariableModifier

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.learning_rate import scaled_schedule, unscaled_text
from platoon_base.theano_ops import VariableWarmup
from platoon_base.theano_ops import scale_learning_rate as scale_learning_rate

log = logging.getLogger(__name__)

_TRIGGERS = {*SimpleExtension.INTEGER_TRIGGERS, *SimpleExtension.BOOLEAN_TRIGGERS}


def scale_schedule(schedule: Callable[[int], float], *, worker: Worker | None = None) -> Callable[[int], float]:
    """Adapt a schedule for one process, so that it ends at the same epoch on N workers.

    ::

        lr(k) := schedule(N k)        where k counts the batches of this worker

    Do not scale a schedule that was written for batches N times as large. A pickled schedule keeps
    the number of workers.

    Parameters
    ----------
    schedule : callable
        A function of the number of batches done, for `SharedVariableModifier`. Only its argument is
        scaled; use `scale_learning_rate` for its values.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> schedule = scale_schedule(lambda n: np.float32(0.1 * 0.5 ** (n // 5000)))  # doctest: +SKIP
    >>> SharedVariableModifier(rule.learning_rate, schedule)                       # doctest: +SKIP
    """
    if callable(schedule) and _takes_the_old_value(schedule):
        raise ConfigurationError(
            f"got {schedule!r}, which also takes the old value: pass a function of only the "
            "number of batches, or let this one change the value at the ends of epochs with "
            "SharedVariableModifier(..., after_batch=False, after_epoch=True), which needs no "
            "scaling"
        )
    return scaled_schedule(schedule, (connect() if worker is None else worker).global_size)


def warn_of_unscaled_schedules(extensions: Iterable[Any], workers: int) -> None:
    """Warn of each `SharedVariableModifier` whose schedule counts batches and was not scaled."""
    for extension in extensions:
        if isinstance(extension, SharedVariableModifier) and _counts_batches(extension):
            what = f"SharedVariableModifier changes {extension.parameter} by the number of batches"
            remedy = "pass scale_schedule(f), or a function of n and the old value with after_batch=False"
            log.warning(unscaled_text(what, workers, f"{remedy}, after_epoch=True"))


def _counts_batches(extension: Any) -> bool:
    function, given = extension._function, extension._num_args
    # This is the result of scaled_schedule, perhaps unpickled.
    if isinstance(function, functools.partial) and function.func.__module__ == scaled_schedule.__module__:
        return False
    if given is None and function is not None:
        takes_old = _takes_the_old_value(function)
    else:
        # A subclass may have a method in place of the function.
        takes_old = extension.num_args > 1
    # A function of one argument gets the number of batches, even at the ends of epochs.
    return not takes_old or any("batch" in str(callback) for callback, _, _ in extension._conditions)


def _takes_the_old_value(schedule: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(schedule)
    except ValueError:
        # Some functions in C have no signature.
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in signature.parameters.values() if p.kind in kinds and p.default is p.empty]) > 1


class LearningRateWarmup(SimpleExtension):
    """Raise the learning rate from that of one worker to that of N during the first epochs.

    Each trigger sets the shared variable by the equation of `platoon_base.learning_rate.Warmup`
    (Goyal et al., arXiv 1706.02677, section 2.2) until its initial value is reached. Afterwards a
    `SharedVariableModifier` may change it. For a single worker the value stays. A main loop that
    `Checkpoint` pickled resumes the warm-up.

    Parameters
    ----------
    learning_rate : Theano shared variable
        The learning rate of a step rule after the warm-up, as from `scale_learning_rate`.
    warmup_epochs : float
        Length of the warm-up.
    steps_per_epoch : int, optional
        This worker's batches in an epoch. Without it the rate is raised epoch by epoch.
    how : {"linear", "sqrt", "none"}
        How the learning rate was scaled.
    worker : Worker, default ``connect()``
    **kwargs
        The triggers of `SimpleExtension`, and its ``name``; without triggers ``before_batch=True``.

    Examples
    --------
    >>> rule = Momentum(scale_learning_rate(0.1), 0.9)                             # doctest: +SKIP
    >>> warmup = LearningRateWarmup(rule.learning_rate, steps_per_epoch=500)       # doctest: +SKIP
    """

    def __init__(
        self,
        learning_rate: Any,
        warmup_epochs: float = 5,
        steps_per_epoch: int | None = None,
        *,
        how: str = "linear",
        worker: Worker | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**(kwargs if kwargs.keys() & _TRIGGERS else {**kwargs, "before_batch": True}))
        advice = "the shared variable of the step rule, a float scalar such as Momentum(0.1, 0.9).learning_rate"
        self.learning_rate, self.steps_per_epoch = learning_rate, steps_per_epoch
        steps = 1 if steps_per_epoch is None else steps_per_epoch
        self._warmup = VariableWarmup(learning_rate, warmup_epochs, how, worker, steps, advice)

    def do(self, which_callback: str, *args: Any) -> None:
        status = self.main_loop.status
        epochs = status["epochs_done"]
        if self.steps_per_epoch is not None:
            ends = status["_epoch_ends"]
            epochs += (status["iterations_done"] - (ends[-1] if ends else 0)) / self.steps_per_epoch
        self._warmup.set(epochs)
