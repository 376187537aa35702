"""Validation, each worker on its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.metrics import MeanAccumulator, Pairs, means
from platoon_base.sharding import shard_bounds
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_plugins.lasagne.data import require_batch_size, require_same_length, split_arguments
from platoon_plugins.lasagne.training import Training

__all__ = ["evaluate"]

_SCALAR = "scalar"


def evaluate(
    val_fn: Callable[..., Any],
    *arrays: Any,
    batch_size: int | None = None,
    num_slices: int | None = None,
    inputs: Sequence[Any] | None = None,
    targets: Sequence[Any] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    worker: Worker | None = None,
) -> Any:
    """Evaluate the center on all the data, each worker on its shard, and return the exact global mean on every worker.

    All workers call it, with the same data. Each waits until all have called it, so all evaluate the same center.
    During the evaluation each worker's own parameters are set aside. With a rule of which workers wait for one
    another, such as `DiLoCo`, a round ends before, however short it was, and all go on from the center. Running
    statistics of batch normalization are averaged over the workers first, and stay averaged. If a worker leaves
    during the evaluation, the others evaluate its rows too. `StopOnPatience` shows the value in the launcher; without
    one ``connect().report({"val_loss": value})`` does. ``platoon tune`` compares what is shown.

    Parameters
    ----------
    val_fn : callable
        Called with rows of each array; returns the mean over them: a scalar, or a list of scalars.
    *arrays : ndarray or SharedData, all of the same length
        All the validation data, not a shard: usually inputs and targets, also masks and the like. For a function that
        takes row numbers, ``numpy.arange(n)``.
    batch_size : int
        Rows in one call of ``val_fn``. It may also stand behind the arrays.
    num_slices : int
        Instead of ``batch_size``: the number of calls of ``val_fn`` on each worker.
    inputs, targets : ndarray
        The first and the last of the arrays, by name.
    timeout_s : float
        Bound on each wait for the other workers.
    worker : Worker, optional
        The default is ``connect()``.

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
    data, options = split_arguments(arrays, inputs, targets, batch_size=batch_size)
    count = require_same_length(data)
    if not count:
        raise ConfigurationError("got arrays without rows: there must be at least one to evaluate")
    worker = connect() if worker is None else worker
    rows_in_call = _rows_in_call(options["batch_size"], num_slices, count, worker.global_size)
    name = f"evaluate {count} rows {fingerprint(*data)}"
    training = Training.of(worker)
    training.end_round(worker, timeout_s)
    ranks = training.meet(worker, name, timeout_s)
    training.require_same_model(worker, timeout_s)
    worker.average_hosts(timeout_s=timeout_s)
    with worker.center_params(timeout_s=timeout_s):
        while True:
            start, stop = shard_bounds(count, ranks.index(worker.global_rank), len(ranks))
            pairs = _evaluate_rows(val_fn, data, range(start, stop), rows_in_call, worker)
            sums, contributors = worker.advanced.sum_pairs(name, pairs, timeout_s=timeout_s)
            if contributors == ranks:
                break
            ranks = contributors  # somebody left on the way: those who are still here do it again, with larger shards
    training.begin_round(worker, timeout_s)
    values = means(sums)
    # A worker without rows learns from the names what the others' val_fn returned.
    return values[_SCALAR] if _SCALAR in values else [values[str(i)] for i in range(len(values))]


def _rows_in_call(batch_size: int | None, num_slices: int | None, count: int, workers: int) -> int:
    if num_slices is None:
        return require_batch_size(batch_size)
    if batch_size is not None or num_slices < 1:
        raise ConfigurationError(
            f"got batch_size={batch_size!r} and num_slices={num_slices!r}: pass one of them, and at least 1"
        )
    return -(-count // (workers * num_slices))


def _evaluate_rows(
    val_fn: Callable[..., Any], data: Sequence[Any], rows: range, batch_size: int, worker: Worker
) -> Pairs:
    accumulator = MeanAccumulator()
    for start in range(rows.start, rows.stop, batch_size):
        batch = slice(start, min(start + batch_size, rows.stop))
        values = val_fn(*(array[batch] for array in data))
        named = {_SCALAR: values} if np.ndim(values) == 0 else {str(i): v for i, v in enumerate(values)}
        accumulator.add({key: float(value) for key, value in named.items()}, weight=batch.stop - batch.start)
        worker.progress()  # those that wait for this worker see that it goes on
    return accumulator.pairs
