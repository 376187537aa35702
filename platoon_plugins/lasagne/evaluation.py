"""Validation split over the workers, and a stop that all of them take together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.metrics import MeanAccumulator, Pairs, means
from platoon_base.schedule import Patience
from platoon_base.sharding import shard_bounds
from platoon_plugins.lasagne.gradients import require_same_model

__all__ = ["StopOnPatience", "evaluate"]

_SCALAR = "scalar"


def evaluate(
    val_fn: Callable[[Any, Any], Any],
    inputs: Sequence[Any],
    targets: Sequence[Any],
    batch_size: int,
    worker: Worker | None = None,
    *,
    timeout_s: float = 300.0,
) -> Any:
    """Evaluate the center on all the data, each worker on its shard, and return the exact global mean on every worker.

    All workers call it, with the same data. Everybody waits until all have come, so that all evaluate the same center;
    meanwhile each worker's own parameters are set aside. If a worker leaves on the way the others take over its rows.

    Parameters
    ----------
    val_fn : callable
        ``val_fn(inputs, targets)`` returns the mean over the given rows: a scalar, or a list of scalars.
    inputs, targets : ndarray of the same length
        All the validation data, not a shard.
    batch_size : int
        Rows in one call of ``val_fn``.
    worker : Worker, optional
        The default is ``connect()``.
    timeout_s : float
        Bound on the wait for the other workers.

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
    if len(inputs) != len(targets) or not len(inputs):
        raise ConfigurationError(
            f"got {len(inputs)} inputs and {len(targets)} targets: they must be as many, and at least one"
        )
    if batch_size < 1:
        raise ConfigurationError(f"got batch_size={batch_size!r}: it counts rows and must be at least 1")
    worker = connect() if worker is None else worker
    name = f"evaluate {len(inputs)} rows {_fingerprint(inputs, targets)}"
    ranks = worker.meet(name, timeout_s=timeout_s)
    require_same_model(worker, timeout_s)
    with worker.center_params():
        while True:
            start, stop = shard_bounds(len(inputs), ranks.index(worker.global_rank), len(ranks))
            pairs = _evaluate_rows(val_fn, inputs, targets, range(start, stop), batch_size)
            sums, contributors = worker.sum_pairs(name, pairs, timeout_s=timeout_s)
            if contributors == ranks:
                break
            ranks = contributors  # somebody left on the way: those who are still here do it again, with larger shards
    values = means(sums)
    # A worker without rows learns from the names what the others' val_fn returned.
    return values[_SCALAR] if _SCALAR in values else [values[str(i)] for i in range(len(values))]


def _evaluate_rows(
    val_fn: Callable[[Any, Any], Any], inputs: Sequence[Any], targets: Sequence[Any], rows: range, batch_size: int
) -> Pairs:
    accumulator = MeanAccumulator()
    for start in range(rows.start, rows.stop, batch_size):
        batch = slice(start, min(start + batch_size, rows.stop))
        values = val_fn(inputs[batch], targets[batch])
        named = {_SCALAR: values} if np.ndim(values) == 0 else {str(i): v for i, v in enumerate(values)}
        accumulator.add({key: float(value) for key, value in named.items()}, weight=batch.stop - batch.start)
    return accumulator.pairs


def _fingerprint(*data: Sequence[Any]) -> str:
    """Tell data sets of one length apart by their first and last rows, so that no two are summed up together."""
    ends = [np.asarray(row).tobytes() for rows in data for row in (rows[0], rows[-1])]
    return f"{zlib.crc32(b'|'.join(ends)):08x}"


class StopOnPatience:
    """End the job on all workers together when a global value has not improved for some epochs.

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

    @property
    def best(self) -> float:
        """The best value so far; NaN before the first."""
        return self._patience.best

    def __call__(self, value: float) -> bool:
        """Take in a value, such as `evaluate` returns, and tell whether to stop: on all workers alike.

        All workers call it, once an epoch. Whatever else made the job stop counts too.
        """
        self.improved = self._patience.improved(value)
        self._worker.keep(self._name, (self._patience.best, self._patience.waited))
        if self._patience.exhausted:
            self._worker.request_stop(f"no improvement in {self._patience.patience} evaluations")
        return self._worker.agree_to_stop()
