"""Validation split over the workers, and a stop that all of them take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.metrics import MeanAccumulator
from platoon_base.schedule import Patience

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
    meanwhile each worker's own parameters are set aside.

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
    rows = worker.shard(len(inputs))
    worker.barrier("evaluate", timeout_s=timeout_s)
    accumulator = MeanAccumulator()
    with worker.center_params():
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            values = val_fn(inputs[batch], targets[batch])
            named = {_SCALAR: values} if np.ndim(values) == 0 else {str(i): v for i, v in enumerate(values)}
            accumulator.add({name: float(value) for name, value in named.items()}, weight=len(batch))
    means = worker.reduce_metrics(accumulator.pairs, timeout_s=timeout_s)
    # A worker without rows learns from the names what the others' val_fn returned.
    return means[_SCALAR] if _SCALAR in means else [means[str(i)] for i in range(len(means))]


class StopOnPatience:
    """End the job on all workers together when a global value has not improved for some epochs.

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

    Examples
    --------
    >>> stop = StopOnPatience(patience=5)                                           # doctest: +SKIP
    >>> for epoch in range(500):                                                    # doctest: +SKIP
    ...     train_one_epoch()
    ...     if stop(evaluate(val_fn, X_val, y_val, 500)):
    ...         break
    """

    def __init__(self, patience: int, min_delta: float = 0.0, mode: str = "min", worker: Worker | None = None) -> None:
        self._patience = Patience(patience, min_delta, mode)
        self._worker = connect() if worker is None else worker
        self.improved = False

    @property
    def best(self) -> float:
        """The best value so far; NaN before the first."""
        return self._patience.best

    def __call__(self, value: float) -> bool:
        """Take in a value that is the same on all workers, such as `evaluate` returns; True when it is time to stop."""
        self.improved = self._patience.improved(value)
        if self._patience.exhausted:
            self._worker.request_stop(f"no improvement in {self._patience.patience} evaluations")
        return self._worker.should_stop
