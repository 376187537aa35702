"""Validation in which each worker evaluates its shard of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.metrics import MeanAccumulator, Pairs, means
from platoon_base.sharding import shard_bounds
from platoon_base.theano_ops import reduction_of
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_plugins.lasagne.data import require_batch_size, require_same_length, split_arguments
from platoon_plugins.lasagne.training import Training

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
    """Evaluate the center on data divided among the workers; return the exact global mean.

    A collective call: all workers pass the same data and wait for each other, so that they evaluate
    the same center. Meanwhile the parameters have the center's values; afterwards each worker gets
    its own values back. With a rule that waits, such as `DiLoCo`, the current round ends first, and
    all workers continue from the center. Running statistics of batch normalization are averaged
    over the workers, and stay averaged. If a worker leaves during the evaluation, the others
    evaluate its rows.

    The launcher shows the value if it is passed to `StopOnPatience` or to
    ``connect().report({"val_loss": value})``, and ``platoon tune`` compares it.

    Parameters
    ----------
    val_fn : callable
        Called with rows of each array; returns a scalar, or a list of scalars. If its graph shows
        means over the rows, the workers divide the rows. Other functions, such as sums and Python
        functions, get the same rows as in a single process, and the workers divide the calls.
    *arrays : ndarray or SharedData, all of the same length
        All validation data, not a shard: usually inputs and targets. For a function that takes row
        numbers, pass ``numpy.arange(n)``.
    batch_size : int
        Rows in one call of ``val_fn``. It may also be passed positionally after the arrays.
    num_slices : int
        Instead of ``batch_size``: the number of calls of ``val_fn`` on each worker. The value of a
        sum then depends on the number of workers.
    inputs, targets : ndarray
        The first and the last of the arrays, by name.
    timeout_s : float
        Bound on each wait for the other workers.
    worker : Worker, default ``connect()``

    Returns
    -------
    float or list of float
        The mean of the values of ``val_fn``, weighted by rows, as a single process computes it.

    Raises
    ------
    ConfigurationError
        On every worker, if parameters differ that `all_reduce_grads` keeps equal.
    CollectiveTimeoutError
        If some workers did not call it within ``timeout_s``.
    """
    data, options = split_arguments(arrays, inputs, targets, batch_size=batch_size)
    count = require_same_length(data)
    if not count:
        raise ConfigurationError("got arrays without rows: there must be at least one to evaluate")
    worker = connect() if worker is None else worker
    rows_in_call = _rows_in_call(options["batch_size"], num_slices, count, worker.global_size)
    # For a mean the workers divide the rows, and for any other function whole calls.
    unit = 1 if _is_mean(val_fn) else rows_in_call
    name = f"evaluate {count} rows {fingerprint(*data)}"
    training = Training.begun(worker, timeout_s)

    def own(index: int, number: int) -> Pairs:
        start, stop = shard_bounds(-(-count // unit), index, number)
        return _evaluate_rows(val_fn, data, range(start * unit, min(stop * unit, count)), rows_in_call, worker)

    def combine(pairs: Pairs, ranks: list[int]) -> tuple[Pairs, list[int]]:
        return worker.advanced.sum_pairs(name, pairs, timeout_s=timeout_s)

    with worker.validating(), training.evaluation(lambda: training.meet(name)):
        sums = training.evaluate(own, combine)
    values = means(sums)
    # A worker without rows has not called val_fn: the names of the sums tell a scalar from a list.
    return values[_SCALAR] if _SCALAR in values else [values[str(i)] for i in range(len(values))]


def _is_mean(val_fn: Callable[..., Any]) -> bool:
    outputs = getattr(getattr(val_fn, "maker", None), "outputs", [])
    kinds = {reduction_of(getattr(output, "variable", None)) for output in outputs}
    return bool(kinds) and kinds <= {"mean", "constant"}


def _rows_in_call(batch_size: int | None, num_slices: int | None, count: int, workers: int) -> int:
    if num_slices is None:
        return require_batch_size(batch_size)
    if batch_size is not None or num_slices < 1:
        raise ConfigurationError(
            f"got batch_size={batch_size!r} and num_slices={num_slices!r}: pass one of them, at least 1"
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
        # Progress keeps the waiting workers from timing out.
        worker.progress()
    return accumulator.pairs
