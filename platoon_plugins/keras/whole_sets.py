"""Evaluation and prediction of a whole data set, divided among the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import shard_bounds
from platoon_base.worker import gather_rows
from platoon_plugins.keras import backends
from platoon_plugins.keras.data import shard
from platoon_plugins.keras.evaluation import Evaluation
from platoon_plugins.keras.model_state import require_stateless
from platoon_plugins.keras.optimizers import average_of_model
from platoon_plugins.keras.parts import NAMES, has_rows, map_arrays
from platoon_plugins.keras.read_order import describe, require_same_orders
from platoon_plugins.keras.same_data import require_same_data

_calls = [0]


def evaluate(model: Any, *data: Any, worker: Worker | None = None, **options: Any) -> Any:
    """Evaluate a model on a whole data set, divided among the workers; a collective call.

    Every worker returns the values of ``model.evaluate`` for all the data in a single process. The
    weights (as after ``fit``) and the data must be the same on all workers.

    Parameters
    ----------
    model : keras.Model
        A compiled model.
    *data
        The whole x, y and sample_weight, or one data set, as for `shard`; also by these names.
    worker : Worker, optional
        The default is ``connect()``. For a single worker the call is ``model.evaluate``.
    **options
        Options of ``model.evaluate``, such as ``batch_size`` and ``return_dict``. Only the leader
        prints.

    Raises
    ------
    ConfigurationError
        If the data cannot be divided or differ between workers; if a metric cannot be summed; if
        ``steps`` is passed.

    Examples
    --------
    >>> loss, accuracy = evaluate(model, x_test, y_test)                          # doctest: +SKIP
    """
    worker = connect() if worker is None else worker
    data = _with_named(data, options)
    if worker.global_size == 1:
        return model.evaluate(**dict(zip(NAMES, data)), **options)
    if options.get("steps") is not None:
        raise ConfigurationError(
            f"got steps={options['steps']!r}, which would be as many steps of each worker's part, "
            "on other rows than in one process: cut the data instead, for example x[:steps * "
            "batch_size]"
        )
    require_stateless(model)
    keeps_rows: dict[str, Any] = {"reshuffle": False} if has_rows(data[0]) else {}
    own = shard(*data, worker=worker, **keeps_rows)
    own = own if len(data) > 1 else (own,)
    gathered = _Gathered(worker, model)
    if not worker.is_leader:
        options["verbose"] = 0
    callbacks = [gathered, *(options.pop("callbacks", None) or [])]
    local = model.evaluate(**dict(zip(NAMES, own)), callbacks=callbacks, **options)
    if not has_rows(data[0]):
        read = [worker.global_rank, describe(worker)]
        require_same_orders(worker, worker.gather(read, name=f"keras evaluated {_calls[0]}"))
    if isinstance(local, dict):
        return {name: gathered.values.get(name, value) for name, value in local.items()}
    values = _in_the_order_of_keras(model, gathered.values)
    return values if isinstance(local, list) else values[0]


def _with_named(data: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return the data including those among the options, which are removed there."""
    named = {name: options.pop(name) for name in NAMES if name in options}
    named = {name: value for name, value in named.items() if value is not None}
    for name in NAMES[: len(data)]:
        if name in named:
            raise ConfigurationError(f"got {name} both by position and by name: pass it once")
    last = max([len(data), *(NAMES.index(name) + 1 for name in named)])
    data = (*data, *(named.get(name) for name in NAMES[len(data) : last]))
    if not 1 <= len(data) <= len(NAMES) or data[0] is None:
        sets = sum(each is not None for each in data)
        raise ConfigurationError(f"got {sets} sets of data: pass x, y and sample_weight, or one data set")
    return data


def _in_the_order_of_keras(model: Any, values: Mapping[str, Any]) -> list[Any]:
    """Return values in the order of ``model.evaluate``, which differs from that of ``logs``."""
    if hasattr(model, "_flatten_metrics_in_order"):  # Keras 3
        flat = model._flatten_metrics_in_order(dict(values))
        return flat if isinstance(flat, list) else [flat]
    names = model.metrics_names if set(model.metrics_names) == set(values) else values
    return [values[name] for name in names]


class _Gathered(keras.callbacks.Callback):
    """Callback that combines the values of an evaluation over all workers."""

    def __init__(self, worker: Worker, model: Any) -> None:
        super().__init__()
        self._evaluation = Evaluation(worker, backends.current(), model, average_of_model(model))
        model.reset_metrics()
        self._evaluation.begin_by_itself()
        _calls[0] += 1
        self.values: dict[str, Any] = {}

    def on_test_begin(self, logs: Any = None) -> None:
        self._evaluation.test_begins()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._evaluation.test_batch_ends({} if logs is None else logs)

    def on_test_end(self, logs: Any = None) -> None:
        self.values = self._evaluation.together(_calls[0])


def predict(model: Any, x: Any, *, worker: Worker | None = None, **options: Any) -> Any:
    """Predict for a whole data set, divided among the workers; a collective call.

    Parameters
    ----------
    model : keras.Model
    x : array, or list, tuple or dict of arrays
        All rows, the same on every worker. Each worker predicts for a block of rows.
    worker : Worker, optional
        The default is ``connect()``. For a single worker the call is ``model.predict``.
    **options
        Options of ``model.predict``, such as ``batch_size``. Only the leader prints.

    Returns
    -------
    array, or nested arrays
        On every worker, the predictions for all rows, in the order of x.

    Raises
    ------
    ConfigurationError
        If x is no array, or differs between workers.
    """
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        return model.predict(x, **options)
    require_stateless(model)
    lengths: list[int] = []
    if has_rows(x):
        map_arrays(x, lambda array: lengths.append(len(array)))
    if len(set(lengths)) != 1:
        raise ConfigurationError(
            f"got {type(x).__name__} with {sorted(set(lengths)) or 'no'} rows: pass arrays with "
            "the same number of rows; for a data set call model.predict on one worker"
        )
    require_same_data((x,), worker)
    rows = lengths[0]
    start, stop = shard_bounds(rows, worker.global_rank, worker.global_size)
    if not worker.is_leader:
        options["verbose"] = 0
    # The shape of an output is unknown on a worker without rows.
    if rows < worker.global_size:
        return model.predict(x, **options)
    own = model.predict(map_arrays(x, lambda array: array[start:stop]), **options)
    return map_arrays(own, lambda array: gather_rows(np.asarray(array), worker, may_lose=False))
