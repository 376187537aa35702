"""Learning rates for N workers: scaling with their number, schedules and warm-up."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import theano

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.learning_rate import scaled_schedule, unscaled_text
from platoon_base.theano_ops import VariableWarmup
from platoon_base.theano_ops import scale_learning_rate as scale_learning_rate
from platoon_plugins.lasagne.graph import shared_variables

log = logging.getLogger(__name__)

# The workers whose scripts have called scale_schedule.
_scaled: weakref.WeakSet[Worker] = weakref.WeakSet()


def scale_schedule(schedule: Callable[[Any], Any], *, worker: Worker | None = None) -> Callable[[Any], Any]:
    """Adapt a schedule for one process, so that it ends at the same epoch on N workers.

    ::

        lr(k) := schedule(N k)        where k counts the mini-batches of this worker

    Do not scale a schedule that was written for batches N times as large.

    Parameters
    ----------
    schedule : callable
        A function of the number of mini-batches done, which may be a Theano expression. Only its
        argument is scaled; use `scale_learning_rate` for its values.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> schedule = scale_schedule(lambda step: 0.1 * 0.5 ** (step // 5000))        # doctest: +SKIP
    >>> rate.set_value(lasagne.utils.floatX(schedule(step)))                       # doctest: +SKIP
    """
    worker = connect() if worker is None else worker
    _scaled.add(worker)
    return scaled_schedule(schedule, worker.global_size)


def warn_of_unscaled_schedule(updates: Mapping[Any, Any], params: Sequence[Any], worker: Worker) -> None:
    """Warn, on the first worker, if the updates depend on an unscaled count of mini-batches."""
    if worker.global_size == 1 or worker.global_rank or worker in _scaled:
        return
    used = shared_variables([updates[param] for param in params])
    # A count is an integer scalar with an update; the counts in Lasagne's update rules are floats.
    counts = [v for v in used if v in updates and v.ndim == 0 and v.dtype in theano.tensor.integer_dtypes]
    if counts:
        what = f"the updates depend on {', '.join(map(str, counts))}, which counts the mini-batches of this worker"
        log.warning(unscaled_text(what, worker.global_size, "make it by scale_schedule(f)(count)"))


class LearningRateWarmup:
    """Raise the learning rate from that of one worker to that of N during the first epochs.

    Call it before each mini-batch. It sets the shared variable by the equation of
    `platoon_base.learning_rate.Warmup` (Goyal et al., arXiv 1706.02677, section 2.2) until the
    initial value is reached, and does not change it afterwards. For a single worker the value
    stays. A late joiner has its own warm-up.

    Parameters
    ----------
    learning_rate : Theano shared variable
        A float scalar with the learning rate after the warm-up, as from `scale_learning_rate`.
    warmup_epochs : float
        Length of the warm-up.
    steps_per_epoch : int
        This worker's mini-batches in an epoch.
    skip : int
        Mini-batches already done: ``worker.resume_at.steps`` after a resume or a restart.
    how : {"linear", "sqrt", "none"}
        How the learning rate was scaled.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> warmup = LearningRateWarmup(rate, warmup_epochs=5, steps_per_epoch=500)    # doctest: +SKIP
    >>> for batch in iterate_minibatches(X, Y, 32, epoch=epoch, uneven="drop"):    # doctest: +SKIP
    ...     warmup()
    ...     train(*batch)
    """

    def __init__(
        self,
        learning_rate: Any,
        warmup_epochs: float = 5,
        *,
        steps_per_epoch: int,
        skip: int = 0,
        how: str = "linear",
        worker: Worker | None = None,
    ) -> None:
        if skip < 0:
            raise ConfigurationError(f"got skip={skip!r}: it counts mini-batches and must be 0 or more")
        advice = (
            "the shared variable with which the updates are created, a float scalar such as "
            "theano.shared(lasagne.utils.floatX(0.1)); a number would be compiled into the "
            "function"
        )
        self._warmup = VariableWarmup(learning_rate, warmup_epochs, how, worker, steps_per_epoch, advice)
        self._steps, self._steps_per_epoch = skip, steps_per_epoch

    def __call__(self) -> None:
        self._warmup.set(self._steps / self._steps_per_epoch)
        self._steps += 1
