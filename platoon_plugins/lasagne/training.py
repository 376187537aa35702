"""State of one training, such as its statistics and period, and the call that ends it."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.worker import DEFAULT_TIMEOUT_S, Fit, State, agree, default_rule_of, require_same_values

log = logging.getLogger(__name__)

_SAME_MODEL = (
    "averaged gradients keep parameters the same only if all workers make the same steps: use "
    "the same optimizer and learning rate on all of them, and change parameters on all of them "
    "or on none"
)


class Training(Fit):
    """One training: `sync_updates` and `all_reduce_grads` begin it, `evaluate` and the end use it."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.statistics: list[Any] = []
        # Parameters whose gradients `all_reduce_grads` averages.
        self.averaged: weakref.WeakSet[Any] = weakref.WeakSet()
        self.intents: list[Any] = []
        # A late joiner has initial statistics, which are not averaged, until its first `meet`.
        self._fresh = worker.late
        self._to_compare: list[Any] = []
        self._compared = False

    @staticmethod
    def of(worker: Worker, timeout_s: float = DEFAULT_TIMEOUT_S) -> Training:
        if worker not in _trainings:
            _trainings[worker] = Training(worker)
        _trainings[worker].timeout_s = timeout_s
        return _trainings[worker]

    @staticmethod
    def begun(worker: Worker, timeout_s: float) -> Training:
        """Return the training that this worker evaluates or finishes; an error if it has left the job since."""
        if worker not in _trainings and any(each.closed and training.synced for each, training in _trainings.items()):
            raise ConfigurationError(
                "this worker left the job (close(), or the end of a with block) before finish_training(), so "
                "each worker has its own model: call evaluate() and finish_training() before that"
            )
        return Training.of(worker, timeout_s)

    @staticmethod
    def forget(worker: Worker) -> None:
        _trainings.pop(worker, None)

    def intend(self, call: str) -> None:
        worker = self.worker
        before = worker.advanced.activity
        remedy = "was never run by a function that trains: pass its updates to theano.function"
        self.intents.append(worker.advanced.intend(call, remedy, lambda: worker.advanced.activity == before))

    def add(self, statistics: Iterable[Any]) -> None:
        known = {id(variable.container) for variable in self.statistics}
        self.statistics += [variable for variable in statistics if id(variable.container) not in known]

    def compare_later(self, params: list[Any]) -> None:
        """Add parameters for `require_same_model`; after a comparison a new list begins."""
        self._to_compare = [*([] if self._compared else self._to_compare), *params]
        self._compared = False

    def start_statistics(self, statistics: list[Any]) -> None:
        """Copy the first worker's statistics to all; a late joiner gets averages at `meet`."""
        if not statistics:
            return
        first = self.worker.global_rank == 0
        values = [variable.get_value() for variable in statistics]
        mine = values if first else [np.zeros_like(value) for value in values]
        pairs = {"first": (float(first), 1.0)}
        summed = self.worker.advanced.sum_arrays(
            "the first values of statistics", mine, pairs, skips_late=True, timeout_s=self.timeout_s
        )
        if summed.pairs["first"][0]:
            for variable, value in zip(statistics, summed.arrays):
                variable.set_value(np.asarray(value, variable.dtype))

    def meet(self, name: str) -> list[int]:
        """Wait for all workers, average the statistics, and return the ranks that took part.

        Raise on all workers if averaged gradients have not kept parameters equal.
        """
        states = [State(variable, default_rule_of(variable.dtype)) for variable in self.statistics]
        # Statistics that are not finite are left out of the average, and replaced by it.
        sound = not self._fresh and all(np.isfinite(variable.get_value()).all() for variable in self.statistics)
        ranks = agree(states, self.worker, name, float(sound), timeout_s=self.timeout_s)
        self._fresh = False
        if self._to_compare:
            self._compared = True
            found = [(f"{p} (number {i})", p.get_value(borrow=True)) for i, p in enumerate(self._to_compare)]
            what = "the parameters of all_reduce_grads"
            require_same_values(self.worker, what, found, _SAME_MODEL, timeout_s=self.timeout_s)
        return ranks


_trainings: dict[Worker, Training] = {}
_watched: weakref.WeakSet[Worker] = weakref.WeakSet()


def warn_unless_finished(worker: Worker) -> None:
    if worker.global_size > 1 and worker not in _watched:
        _watched.add(worker)
        atexit.register(_warn_if_unfinished, weakref.ref(worker))


def _warn_if_unfinished(reference: weakref.ref[Worker]) -> None:
    worker = reference()
    training = None if worker is None else _trainings.get(worker)
    if worker is None or training is None or not training.synced:
        return
    if worker.advanced.sharing and not worker.should_stop and getattr(sys, "last_value", None) is None:
        log.warning(
            "rank %d: the script ends without finish_training(), so it has only the model of "
            "this worker: call finish_training() on every worker after the loop, before the "
            "model is tested or saved",
            worker.global_rank,
        )


def finish_training(*, timeout_s: float = DEFAULT_TIMEOUT_S, worker: Worker | None = None) -> None:
    """End a training on all workers: each model gets the center and averaged statistics.

    A collective call after the training loop; afterwards one worker saves the model. If the loop
    ended with `evaluate`, this is the evaluated model; otherwise each worker first synchronizes its
    latest mini-batches. Functions that were compiled with `sync_updates` cannot be called any more,
    and `sync_updates` may be called for the next training, such as the next fold.

    Parameters
    ----------
    timeout_s : float
        Bound on each wait for the other workers.
    worker : Worker, default ``connect()``

    Raises
    ------
    NonFiniteError
        If this worker's parameters are not finite, see `Worker.init_shared_params`.
    CollectiveTimeoutError
        If some workers did not call it in time; the message names them.

    Examples
    --------
    >>> finish_training()                                                          # doctest: +SKIP
    >>> if connect().is_leader:                                                    # doctest: +SKIP
    ...     numpy.savez("model.npz", *lasagne.layers.get_all_param_values(network))
    """
    worker = connect() if worker is None else worker
    training = Training.begun(worker, timeout_s)
    if worker.global_size > 1 and not worker.advanced.sharing and training.rule is None and not training.averaged:
        log.warning(
            "rank %d: this training has shared nothing, so each worker has its own model; pass "
            "the updates through sync_updates(updates, params), or compute them from "
            "all_reduce_grads(loss, params)",
            worker.global_rank,
        )
    training.end(lambda: training.meet("finish_training"))
    Training.forget(worker)
