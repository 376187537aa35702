"""The arguments of ``fit`` for a prepared model: this worker's part of the data and steps."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.worker import warn_once
from platoon_plugins.keras import seeds
from platoon_plugins.keras.data import is_dataset, is_sequence, is_sharded, shard, shard_arrays
from platoon_plugins.keras.model_state import require_stateless
from platoon_plugins.keras.parts import NAMES, has_rows, is_part, leaves, map_arrays, rows_at, too_few
from platoon_plugins.keras.read_order import REMEDY, ReadOrder, comparable, register, sources
from platoon_plugins.keras.same_data import require_same_data
from platoon_plugins.keras.torch_loaders import every_nth

_ROWS = 32  # The default batch size of Keras.


def divide(model: Any, values: dict[str, Any], worker: Worker) -> None:
    """Replace whole data in the arguments of ``fit`` by this worker's part; keep shards."""
    name = "generator" if "generator" in values else "x"
    given = values.get(name), values.get("validation_data")
    # This comes first, as a validation_split is divided with the rows of training.
    if values.get("validation_data") is not None:
        try:
            _divide_validation(values, worker)
        except ConfigurationError as exc:
            raise type(exc)(f"validation_data: {exc}") from None
    if has_rows(values.get(name)):
        _divide_arrays(values, worker)
    elif values.get(name) is not None:
        values[name] = _part_of_set(values[name], worker, f"passed as {name}")
    if any(now is not before for now, before in zip((values.get(name), values.get("validation_data")), given)):
        require_stateless(model)
    if values.get("steps_per_epoch") is not None:
        values["steps_per_epoch"] = _fewer(values["steps_per_epoch"], worker)


def build(model: Any, values: dict[str, Any]) -> None:
    """Build a model from the shapes of a batch, as Keras does in ``fit`` on torch and JAX."""
    x = values.get("x")
    if not hasattr(model, "_symbolic_build") or x is None or all(layer.built for layer in model._flatten_layers()):
        return
    if has_rows(x):
        data = tuple(values.get(name) for name in NAMES)
        batch = tuple(map_arrays(part, lambda array: np.asarray(array[:1])) for part in data)
    elif is_sequence(x):
        with seeds.kept_numpy():  # Batches may draw random numbers.
            batch = x[0]
    else:
        batches = iter(x)
        batch = next(batches)
        if batches is x:  # A generator cannot be restarted.
            # Keras requires an object of the generator class.
            values["x"] = (each for each in itertools.chain([batch], batches))
    model._symbolic_build(data_batch=batch)


def batch_of(data: tuple[Any, ...], worker: Worker) -> tuple[Any, ...]:
    """Return this worker's rows of a batch; all rows if there are fewer than workers."""
    counts = [int(array.shape[0]) if hasattr(array, "shape") else len(array) for array in leaves(data)]
    if not counts or min(counts) < worker.global_size:
        return data
    every = slice(worker.global_rank, None, worker.global_size)
    return tuple(map_arrays(part, lambda array: rows_at(array, every)) for part in data)


def _fewer(steps: int, worker: Worker) -> int:
    """Return the steps of one worker for the steps of one process, rounded up."""
    return -(-int(steps) // worker.global_size)


def _divide_arrays(values: dict[str, Any], worker: Worker) -> None:
    data = tuple(values.get(name) for name in NAMES)
    if _is_from_shard(data):
        return
    split = values.get("validation_split") or 0.0
    if split and values.get("validation_data") is None:
        own, values["validation_data"] = shard_arrays(data, worker, validation_split=split, checked=False)
        values["validation_split"] = 0.0
    else:
        own, _ = shard_arrays(data, worker, checked=False)
    values.update({name: part for name, part in zip(NAMES, own) if part is not None})


def _is_from_shard(data: Any) -> bool:
    return any(is_part(array) for array in leaves(data))


def _divide_validation(values: dict[str, Any], worker: Worker) -> None:
    data = values["validation_data"]
    steps = values.get("validation_steps")
    if isinstance(data, (tuple, list)) or has_rows(data):
        data = tuple(data) if isinstance(data, (tuple, list)) else (data,)
        if _is_from_shard(data):
            return
        if steps is not None:
            rows = values.get("validation_batch_size") or values.get("batch_size") or _ROWS
            # One process would validate these rows.
            data = tuple(map_arrays(part, lambda array: array[: int(steps) * rows]) for part in data)
            values["validation_steps"] = None
        own = shard(*data, worker=worker)
        values["validation_data"] = own if len(data) > 1 else (own,)
        return
    values["validation_data"] = own = _part_of_set(data, worker, "passed as validation_data")
    if is_sequence(own):
        len(own)  # Raises now if there are too few rows.
    if steps is not None:
        values["validation_steps"] = _fewer(steps, worker)


def _part_of_set(data: Any, worker: Worker, what: str) -> Any:
    if is_sharded(data):
        return data
    if is_dataset(data):
        return _part_of_dataset(data, worker, what)
    if inspect.isgenerator(data) or (isinstance(data, Iterator) and not is_sequence(data)):
        warn_once(
            f"got a {type(data).__name__}: each of the {worker.global_size} workers makes all its batches "
            f"and uses only every {worker.global_size}-th. A PyDataset makes only the batches that a "
            "worker needs"
        )
        return _part_of_generator(data, worker, what)
    return shard(data, worker=worker)


# The order and random generators of each generator. A later fit continues where the last one
# stopped reading.
_generators: weakref.WeakKeyDictionary[Any, tuple[ReadOrder, seeds.Common]] = weakref.WeakKeyDictionary()


def _part_of_generator(data: Any, worker: Worker, what: str) -> Iterator[Any]:
    try:
        known = _generators.get(data)
    except TypeError:  # This class has no weak references.
        known = None
    if known is None:
        order = ReadOrder(f"the {type(data).__name__} {what}", REMEDY, worker.global_size)
        known = order, seeds.Common([worker.seed, register(order, worker)])
        with contextlib.suppress(TypeError):
            _generators[data] = known
    order, common = known
    if order.batches:  # Workers may have read ahead differently.
        counts = worker.gather(order.batches, name=f"keras {order.what}")
        for _ in every_nth(itertools.islice(data, max(counts) - order.batches), order, common, worker):
            pass
    return every_nth(data, order, common, worker)


def _part_of_dataset(data: Any, worker: Worker, what: str) -> Any:
    """Return every N-th batch of a tf.data.Dataset, whose order is the same on all workers."""
    if any("Shard" in type(source).__name__ for source in sources(data)):
        return data
    data = comparable(data, worker, what)
    require_same_data((data,), worker)
    rank, size = worker.global_rank, worker.global_size
    batches = int(data.cardinality())
    if not 0 < batches < size:
        return data.shard(size, rank)
    # Some workers share each batch: batches padded to different lengths cannot be joined.
    rows = [max(len(leaf) for leaf in leaves(batch)) for batch in data]
    sharing = [len(range(i, size, batches)) for i in range(batches)]
    if any(count < number for count, number in zip(rows, sharing)):
        raise too_few(f"{sum(rows)} rows", sum(rows), size)
    mine = rank % batches
    return data.skip(mine).take(1).unbatch().shard(sharing[mine], rank // batches).batch(rows[mine])
