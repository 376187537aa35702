"""Validation split over the workers, and a stop that all of them take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.metrics import MeanAccumulator, Pairs, means
from platoon_base.schedule import Patience
from platoon_base.sharding import shard_bounds
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_plugins.lasagne.data import require_same_length, split_arguments
from platoon_plugins.lasagne.training import Training

__all__ = ["StopOnPatience", "evaluate"]

_SCALAR = "scalar"


def evaluate(
    val_fn: Callable[..., Any],
    *arrays: Any,
    batch_size: int | None = None,
    worker: Worker | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    inputs: Sequence[Any] | None = None,
    targets: Sequence[Any] | None = None,
) -> Any:
    """Evaluate the center on all the data, each worker on its shard, and return the exact global mean on every worker.

    All workers call it, with the same data. Everybody waits until all have come, so that all evaluate the same center;
    meanwhile each worker's own parameters are set aside. Running statistics of batch normalization are averaged over
    the workers first, and stay so. If a worker leaves on the way the others take over its rows.

    Parameters
    ----------
    val_fn : callable
        Called with rows of each array; returns the mean over them: a scalar, or a list of scalars.
    *arrays : ndarray, all of the same length
        All the validation data, not a shard: usually inputs and targets, also masks and the like. For a function that
        takes row numbers, ``numpy.arange(n)``.
    batch_size : int
        Rows in one call of ``val_fn``. It may also stand behind the arrays, and ``worker`` behind it.
    worker : Worker, optional
        The default is ``connect()``.
    timeout_s : float
        Bound on the wait for the other workers.
    inputs, targets : ndarray
        The first and the last of the arrays, by name.

    Returns
    -------
    float or list of float
        As ``val_fn`` returns; weighted by rows, so it is what one process reports for all the data.

    Raises
    ------
    ConfigurationError
        On every worker, if parameters differ that `all_reduce_grads` keeps the same.
    CollectiveTimeoutError
        If some workers did not call it within ``timeout_s``.
    """
    data, options = split_arguments(arrays, inputs, targets, batch_size=batch_size, worker=worker)
    rows_in_call, worker = options["batch_size"], options["worker"]
    count = require_same_length(data)
    if not count:
        raise ConfigurationError("got arrays without rows: there must be at least one to evaluate")
    if rows_in_call is None or rows_in_call < 1:
        raise ConfigurationError(f"got batch_size={rows_in_call!r}: it counts rows and must be at least 1")
    worker = connect() if worker is None else worker
    name = f"evaluate {count} rows {fingerprint(*data)}"
    training = Training.of(worker)
    ranks = training.meet(worker, name, timeout_s)
    training.require_same_model(worker, timeout_s)
    with worker.center_params():
        while True:
            start, stop = shard_bounds(count, ranks.index(worker.global_rank), len(ranks))
            pairs = _evaluate_rows(val_fn, data, range(start, stop), rows_in_call)
            sums, contributors = worker.sum_pairs(name, pairs, timeout_s=timeout_s)
            if contributors == ranks:
                break
            ranks = contributors  # somebody left on the way: those who are still here do it again, with larger shards
    values = means(sums)
    # A worker without rows learns from the names what the others' val_fn returned.
    return values[_SCALAR] if _SCALAR in values else [values[str(i)] for i in range(len(values))]


def _evaluate_rows(val_fn: Callable[..., Any], data: Sequence[Any], rows: range, batch_size: int) -> Pairs:
    accumulator = MeanAccumulator()
    for start in range(rows.start, rows.stop, batch_size):
        batch = slice(start, min(start + batch_size, rows.stop))
        values = val_fn(*(array[batch] for array in data))
        named = {_SCALAR: values} if np.ndim(values) == 0 else {str(i): v for i, v in enumerate(values)}
        accumulator.add({key: float(value) for key, value in named.items()}, weight=batch.stop - batch.start)
    return accumulator.pairs


class StopOnPatience:
    """End a training on all workers together when a global value has not improved for some epochs.

    The job goes on: make another one for the next training, such as the next fold.

    What was best so far is kept with the job (`Worker.keep`), for a job that is resumed and a worker started again.

    Parameters
    ----------
    patience : int
        Number of evaluations without improvement that are tolerated.
    min_delta : float
        An improvement is a change for the better by more than this.
    mode : {"min", "max"}
        Whether smaller or greater is better.
    worker : Worker, optional
        The default is ``connect()``.
    name : str
        Under which the best is kept: another one for each, if a script has several.

    Attributes
    ----------
    improved : bool
        Whether the latest value was the best so far.
    reason : str
        Why the training ends; empty while it does not.

    Examples
    --------
    >>> stop = StopOnPatience(patience=5)                                           # doctest: +SKIP
    >>> for epoch in range(500):                                                    # doctest: +SKIP
    ...     train_one_epoch()
    ...     if stop(evaluate(val_fn, X_val, y_val, 500)):
    ...         break
    """

    def __init__(
        self,
        patience: int,
        min_delta: float = 0.0,
        mode: str = "min",
        worker: Worker | None = None,
        name: str = "StopOnPatience",
    ) -> None:
        self._patience = Patience(patience, min_delta, mode)
        self._worker = connect() if worker is None else worker
        self._name = name
        self._patience.best, self._patience.waited = self._worker.take_kept(name, (self._patience.best, 0))
        self.improved = False
        self.reason = ""

    @property
    def best(self) -> float:
        """The best value so far; NaN before the first."""
        return self._patience.best

    def __call__(self, value: float) -> bool:
        """Take in a value, such as `evaluate` returns, and tell whether to stop: on all workers alike.

        All workers call it, once an epoch; one whose patience ends is enough. A job that stops ends the training too.
        """
        self.improved = self._patience.improved(value)
        self._worker.keep(self._name, (self._patience.best, self._patience.waited))
        exhausted = self._patience.exhausted
        summed = self._worker.sum_arrays(f"{self._name} decides", [], {"exhausted": (float(exhausted), 1.0)})
        if summed.pairs["exhausted"][0]:
            self.reason = f"no improvement in {self._patience.patience} evaluations"
        elif summed.stop:
            self.reason = summed.stop
        return bool(self.reason)
