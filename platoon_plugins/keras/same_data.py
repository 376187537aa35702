"""Checks of data: they must be equal on all workers, and divided among them in a fit."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.fingerprint import fingerprint, plain
from platoon_base.worker import kind_of, warn_once
from platoon_plugins.keras import seeds
from platoon_plugins.keras.marks import arguments_of_fit
from platoon_plugins.keras.parts import is_part, leaves
from platoon_plugins.keras.read_order import is_in_order, labels_of, sources
from platoon_plugins.keras.torch_loaders import draws_from_all, is_loader

_ORDER = (
    "The workers have different rows, or the same rows in different orders, so their shards "
    "would overlap and miss rows. Shuffle in on_epoch_end with np.random, which draws the same "
    "values on all workers there, or in on_epoch_end and __init__ with a separate generator for "
    "the order, seeded equally: np.random.default_rng(0). If the script itself divides the data "
    "among the workers, pass callbacks=distribute([...]) to fit, which uses them undivided"
)
_ITEMS = 8  # The number of compared items of a torch Dataset.
# Number of readings that detect random labels, even if only half of the batches have them.
_READ_AGAIN = 16
# The classes of tf.data.Dataset that keep all rows of their tensors.
_ALL_ROWS = (
    *("_TensorSliceDataset", "_MapDataset", "_ParallelMapDataset", "_ShuffleDataset", "_RepeatDataset"),
    *("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_PrefetchDataset", "_OptionsDataset"),
    *("CacheDataset", "_CacheDataset"),
)
_sequences: weakref.WeakKeyDictionary[Worker, Iterator[int]] = weakref.WeakKeyDictionary()


def require_same_data(data: tuple[Any, ...], worker: Worker) -> None:
    """Raise if another worker has passed different data to `shard` before; does not wait."""
    if worker.global_size > 1:
        worker.advanced.require_same_data(*(_contents(part) for part in data), kind=kind_of(*data))


class SameBatches:
    """Compares the first and last batch of a PyDataset or Sequence between the workers."""

    # Keras 2 loses exceptions of `on_epoch_end`: a difference is raised at the next batch.

    def __init__(self, whole: Any, worker: Worker) -> None:
        number = next(_sequences.setdefault(worker, itertools.count(1)))
        which = f" ({number} of this script)" if number > 1 else ""
        self._name = f"the {type(whole).__name__}{which}"
        self._worker = worker
        self._failure: PlatoonError | None = None
        self._varies: set[str] = set()

    def check(self, when: str, read: Callable[[], list[Any]]) -> None:
        """Compare batches and labels, except random ones; ``when`` is unique for each call."""
        batches = read()
        for part, taken in (("labels", labels_of), ("batches", lambda batch: batch)):
            mine = fingerprint(*map(taken, batches))
            if part in self._varies:
                continue
            try:
                self._worker.advanced.require_same(f"{self._name}, {when} (its {part}),", mine, _ORDER)
            except ConfigurationError as exc:
                if all(fingerprint(*map(taken, read())) == mine for _ in range(_READ_AGAIN)):
                    self._failure = exc
                    return
                self._varies.add(part)
            except PlatoonError as exc:
                self._failure = exc
                return
        if "batches" in self._varies and ("labels" in self._varies or _same_rows(map(labels_of, batches))):
            warn_once(
                f"the order of {self._name} cannot be compared between the workers: its batches "
                "are random, and their labels do not identify the rows. Shuffle with np.random "
                "in on_epoch_end, or with a generator that has the same seed on all workers"
            )

    def require(self) -> None:
        if self._failure is not None:
            raise self._failure


def _same_rows(labels: Iterable[Any]) -> bool:
    arrays = [np.asarray(plain(array)) for each in labels for array in leaves(each)]
    return all(len({row.tobytes() for row in array}) <= 1 for array in arrays if array.ndim)


def _contents(data: Any) -> Any:
    """Return values for `fingerprint`; of data sets the data that they are made from."""
    if is_loader(data):
        items = _items(data.dataset) if hasattr(data.dataset, "__len__") and len(data.dataset) else []
        return ["loader", data.batch_size, *_of_torch(data.dataset), *items]
    if hasattr(data, "element_spec"):  # A tf.data.Dataset.
        return ["tf.data", str(data.element_spec), int(data.cardinality()), *map(_of_dataset, _compared(data))]
    if hasattr(data, "on_epoch_end"):  # A PyDataset: its batches may be random.
        return [type(data).__name__, len(data) if hasattr(data, "__len__") else data.num_batches]
    return data


def _of_torch(dataset: Any) -> list[Any]:
    """Return the length of a torch Dataset, and its arrays and indices."""
    if hasattr(dataset, "shape") or isinstance(dataset, Sequence):
        return [dataset]
    inside = getattr(dataset, "__dict__", {})
    found = [inside[name] for name in ("tensors", "indices", "data", "targets", "samples") if name in inside]
    inner = getattr(dataset, "dataset", None)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    return [type(dataset).__name__, length, *found, *(_of_torch(inner) if inner is not None else [])]


def _items(dataset: Any) -> list[Any]:
    """Return some items of a torch Dataset, or only labels if the inputs are random."""
    length = len(dataset)

    def read() -> list[Any]:
        opened = copy.copy(dataset)  # The copy opens its own files.
        with seeds.Common([length]):
            return [opened[i * (length - 1) // (_ITEMS - 1)] for i in range(_ITEMS)]

    once, again = read(), read()
    for taken in (once, again), ([*map(labels_of, once)], [*map(labels_of, again)]):
        if fingerprint(taken[0]) == fingerprint(taken[1]):
            return taken[0]
    return []


def _of_dataset(dataset: Any) -> list[Any]:
    """Return the tensors in memory of a tf.data.Dataset, or its first element if it is in order."""
    name, tensors = type(dataset).__name__, getattr(dataset, "_tensors", None)
    if tensors is not None:
        return [name, *(np.asarray(tensor) for tensor in tensors)]
    once, again = _first_of(dataset), _first_of(dataset)
    # A random element is not compared.
    return [name, *(once if fingerprint(*once) == fingerprint(*again) else [])]


def _first_of(dataset: Any) -> list[Any]:
    import tensorflow as tf

    tensors = [tensor for element in dataset.take(1) for tensor in tf.nest.flatten(element)]
    return [np.asarray(tensor) for tensor in tensors if isinstance(tensor, tf.Tensor)]


def _compared(dataset: Any) -> Iterator[Any]:
    """Yield the largest parts of a graph that are read in order, and their tensors in memory."""
    made_from = list(sources(dataset))
    reads = [type(source).__name__ for source in made_from]
    if not any(word in name for name in reads for word in ("Shuffle", "Cache", "Repeat")) and all(
        map(is_in_order, made_from)
    ):
        yield dataset
    yield from () if dataset._inputs() else (dataset,)
    for source in dataset._inputs():
        yield from _compared(source)


# The data passed to fit.


def data_of_fit(model: Any) -> tuple[Any, ...] | None:
    """Return x and y of the calling ``fit``; or None."""
    values = arguments_of_fit(model)
    return (values.get("generator", values.get("x")), values.get("y")) if values else None


def warn_if_not_sharded(data: tuple[Any, ...] | None, worker: Worker) -> None:
    """Warn if all workers train on the same rows; a collective call."""
    mine = None if data is None or not _is_whole(data[0]) else fingerprint(*map(_everything, data))
    told = worker.gather([worker.global_rank, mine], name="keras fit data")
    first = told[0][0] == worker.global_rank
    if first and mine is not None and len(told) > 1 and all(other == mine for _, other in told):
        warn_once(
            f"the {len(told)} workers train on the same data, each on all of it in every epoch: "
            "divide it among them with fit(*shard(x, y)), fit(shard(dataset)) or "
            "fit(shard(loader))"
        )


def _is_whole(data: Any) -> bool:
    """Return whether these may be all the data; False if that is unknown."""
    if is_loader(data):
        return draws_from_all(data)
    # Other classes may skip rows, or take them from a generator.
    if hasattr(data, "element_spec"):
        return all(type(source).__name__ in _ALL_ROWS for source in sources(data))
    # Shards may be equal too, such as all ones.
    if any(is_part(array) for array in leaves(data)):
        return False
    return hasattr(data, "shape") or isinstance(data, (list, tuple, Mapping))


def _everything(data: Any) -> Any:
    """Return values for `fingerprint`: `_contents`, and all attributes of a torch Dataset."""
    if not is_loader(data):
        return _contents(data)
    kept, dataset = [], data.dataset
    while dataset is not None:
        kept.append([type(dataset).__name__, dict(getattr(dataset, "__dict__", {}))])
        dataset = getattr(dataset, "dataset", None)
    return [_contents(data), kept]


def described(value: Any) -> str:
    """Describe settings as a text, equal for equal settings."""
    if isinstance(value, Mapping):
        there = sorted((str(key), each) for key, each in value.items() if each is not None)
        return ", ".join(f"{key}={described(each)}" for key, each in there)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, (str, int, float, type(None))):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))
