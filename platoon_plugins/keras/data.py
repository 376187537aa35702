"""`shard`, which returns a worker's part of arrays, data sets and sequences of batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import epoch_indices, require_uneven, shard_bounds, take
from platoon_plugins.keras import seeds
from platoon_plugins.keras.parts import Cut, is_nested, keep_part, leaves, map_arrays, rows_at, too_few
from platoon_plugins.keras.read_order import comparable, sources
from platoon_plugins.keras.same_data import SameBatches, require_same_data
from platoon_plugins.keras.torch_loaders import is_loader, is_share, shard_loader

_SequenceBase = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence


def shard(
    *data: Any,
    uneven: str = "keep",
    validation_split: float = 0.0,
    reshuffle: bool = True,
    worker: Worker | None = None,
) -> Any:
    """Return this worker's part of each argument, as in ``fit(*shard(x, y))``.

    Of arrays worker r of N gets the rows r, r + N, r + 2N, ... The k-th mini-batches of all workers
    together are the k-th mini-batch of one process with mini-batches N times as large. Lists,
    tuples and dicts of arrays are sharded array by array.

    A ``fit`` that shuffles, with the callbacks of `distribute`, divides the rows of these arrays
    again in each epoch, by one permutation of all rows. It reads each batch from the original
    arrays, and keeps these in memory. The returned arrays do not change. Each worker keeps its rows

    - in validation and with ``fit(shuffle=False)``, which keeps their order too;
    - if ``fit`` gets other arrays, such as ``x / 255``: preprocess arrays before `shard`;
    - if ``fit`` gets ``steps_per_epoch``, ``validation_split``, ``shuffle="batch"`` or, on Keras 2,
      ``class_weight``;
    - if arrays are in files (`numpy.memmap`), on a GPU, or of objects or strings of TensorFlow;
    - in your own training loops.

    A `keras.utils.PyDataset` or `Sequence` is wrapped in one with the same number of batches on
    every worker; the last step divides the rows of the remaining batches. In ``on_epoch_begin`` and
    ``on_epoch_end`` the global random generators are equal on all workers. Seed other generators
    alike: after these calls the workers compare the first and the last batch. If the inputs are
    random, such as noise or crops, they compare only the labels.

    A `tf.data.Dataset` is divided by its method ``shard`` and must have the same order on every
    worker, so shard before you shuffle. A torch `DataLoader` is replaced by one with every N-th
    row, of a common permutation if it shuffles. In your own training loop call
    ``loader.sampler.set_epoch(epoch)`` before each epoch.

    Parameters
    ----------
    *data : array, nested arrays, or PyDataset, Sequence, tf.data.Dataset, DataLoader
        For instance x, y and sample_weight; all arrays must have the same number of rows.
    uneven : {"keep", "drop", "wrap"}
        If N does not divide the number of rows, some workers have one more ("keep"), the last rows
        are skipped ("drop"), or some workers get one of the first rows too ("wrap"). Arrays only.
    validation_split : float
        Reserve this fraction of the rows, the last ones of the whole arrays, for validation, and
        return ``(train, validation)``, two tuples. Arrays only.
    reshuffle : bool
        Whether ``fit`` may divide the rows again in each epoch. Arrays only.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    tuple, or a single value for one argument

    Raises
    ------
    ConfigurationError
        If the numbers of rows differ, there are fewer rows than workers, a kind of data cannot be
        divided, or another worker has passed other data, such as its own random split.

    Examples
    --------
    >>> model.fit(*shard(x, y), validation_data=shard(xv, yv))                      # doctest: +SKIP
    >>> train, valid = shard(x, y, validation_split=0.2)                            # doctest: +SKIP
    >>> model.fit(*train, validation_data=valid)                                    # doctest: +SKIP
    """
    require_uneven(uneven)
    if not data:
        raise ConfigurationError("got nothing to shard: pass arrays, such as shard(x, y)")
    if not 0 <= validation_split < 1:
        raise ConfigurationError(
            f"got validation_split={validation_split!r}: it must be a fraction, 0 or more and less than 1"
        )
    worker = connect() if worker is None else worker
    sets = [part for part in data if is_sequence(part) or is_dataset(part) or is_loader(part)]
    if sets:
        if validation_split or uneven != "keep" or not reshuffle:
            raise ConfigurationError(
                f"got {type(sets[0]).__name__} with validation_split, uneven or reshuffle, which "
                "are for arrays: make two data sets and shard each; a data set sets its own "
                "shuffling"
            )
        parts = tuple(_shard_set(part, worker) for part in data)
        require_same_data(data, worker)
        return parts if len(parts) > 1 else parts[0]
    train, valid = shard_arrays(data, worker, uneven, validation_split, reshuffle)
    if validation_split:
        return train, valid
    return train if len(train) > 1 else train[0]


# Arrays.


def shard_arrays(
    data: tuple[Any, ...],
    worker: Worker,
    uneven: str = "keep",
    validation_split: float = 0.0,
    reshuffle: bool = True,
    checked: bool = True,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return this worker's rows for training and for validation.

    With ``checked`` a `fit` finds out whether the script has changed the arrays, by a checksum.
    """
    rows = _common_rows(data)
    at = math.floor(rows * (1 - validation_split)) if validation_split else rows
    if at < worker.global_size:
        raise too_few(f"{at} rows", at, worker.global_size)
    require_same_data(data, worker)
    if validation_split and rows - at < worker.global_size:
        what = f"validation_split={validation_split!r} of {rows} rows, {rows - at}"
        raise too_few(what, rows - at, worker.global_size)

    def part(start: int, stop: int, uneven: str, reshuffle: bool) -> tuple[Any, ...]:
        cut = Cut(start, stop, worker.global_rank, worker.global_size, uneven)
        return tuple(map_arrays(each, lambda array: _rows(array, cut, reshuffle, checked)) for each in data)

    train = part(0, at, uneven, reshuffle)
    return train, part(at, rows, "keep", False) if validation_split else ()


def _common_rows(data: tuple[Any, ...]) -> int:
    counts = [count for part in data for count in _counts(part)]
    if not counts:
        raise ConfigurationError("got only None: pass arrays, such as shard(x, y)")
    if len(set(counts)) != 1:
        raise ConfigurationError(f"got arrays of {sorted(set(counts))} rows: they must have the same number of rows")
    return counts[0]


def _counts(data: Any) -> list[int]:
    counts: list[int] = []
    map_arrays(data, lambda array: counts.append(_count(array)))
    return counts


def _count(array: Any) -> int:
    if not (hasattr(array, "__getitem__") and (hasattr(array, "shape") or hasattr(array, "__len__"))):
        raise ConfigurationError(
            f"got {type(array).__name__}, which cannot be divided by rows: pass arrays, a "
            "PyDataset or Sequence, a tf.data.Dataset or a torch DataLoader. Let a generator "
            "yield this worker's batches, itertools.islice(generator, rank, None, size), with an "
            "order from its own np.random.default_rng(seed)"
        )
    return int(array.shape[0]) if hasattr(array, "shape") else len(array)


def _rows(array: Any, cut: Cut, reshuffle: bool, checked: bool) -> Any:
    if cut.size == 1 and (cut.start, cut.stop) == (0, _count(array)):
        return array
    array = _with_rows(array)
    mine = _first_rows(array, cut)
    keep_part(mine, array, cut, reshuffle and cut.size > 1, checked)
    return mine


def _with_rows(array: Any) -> Any:
    """Return an EagerTensor as a NumPy array, as it cannot be indexed by row; others unchanged."""
    if type(array).__name__ != "EagerTensor":
        return array
    values = np.asarray(array)  # This shares memory on the host.
    return values if values.dtype.kind in "biuf" else array


def _first_rows(array: Any, cut: Cut) -> Any:
    start, stop, rank, size, uneven = cut
    left_over = (stop - start) % size
    if uneven == "wrap" and left_over and rank >= left_over:
        return take(array, start + epoch_indices(stop - start, rank, size, uneven=uneven))
    if uneven == "drop":
        stop -= left_over
    chosen = slice(start + rank, stop, size)  # A slice makes a view where possible.
    return rows_at(array, chosen)


# Sets of batches.


def is_sequence(data: Any) -> bool:
    return isinstance(data, _SequenceBase)


def is_dataset(data: Any) -> bool:
    """Return whether data are a tf.data.Dataset, without importing TensorFlow."""
    return callable(getattr(data, "shard", None)) and callable(getattr(data, "batch", None))


def is_sharded(data: Any) -> bool:
    """Return whether data are a sequence of batches or a DataLoader that `shard` has returned."""
    return isinstance(data, _ShardedSequence) or (is_loader(data) and is_share(data))


def _shuffles(dataset: Any) -> bool:
    return any("Shuffle" in type(source).__name__ for source in sources(dataset))


def _shard_set(data: Any, worker: Worker) -> Any:
    if worker.global_size == 1:
        return data
    if is_dataset(data):
        if _shuffles(data):
            raise ConfigurationError(
                "got a tf.data.Dataset that shuffles, in another order on each worker, so shards "
                "would overlap and miss rows: shard first, shard(dataset).shuffle(n).batch(b). "
                "image_dataset_from_directory and similar functions shuffle by default: pass "
                "shuffle=False, batch_size=None, and no validation_split, which would hold the "
                "last classes; docs/keras_data.md has another split"
            )
        return comparable(data, worker, "given to shard").shard(worker.global_size, worker.global_rank)
    if is_loader(data):
        return shard_loader(data, worker)
    if is_sequence(data):
        return _ShardedSequence(data, worker)
    raise ConfigurationError(f"got {type(data).__name__} beside a data set: shard them one by one")


def _batches(sequence: Any) -> int | None:
    """Return the number of batches; None for an infinite PyDataset."""
    return len(sequence) if hasattr(sequence, "__len__") else sequence.num_batches


class _ShardedSequence(_SequenceBase):  # type: ignore[misc,valid-type]
    def __init__(self, whole: Any, worker: Worker) -> None:
        options = ("workers", "use_multiprocessing", "max_queue_size")
        known = {name: getattr(whole, name) for name in options if hasattr(whole, name)}
        super().__init__(**known)
        self._whole, self._rank, self._size, self._seed = whole, worker.global_rank, worker.global_size, worker.seed
        self._calls = 0
        self._steps: tuple[int, int] | None = None
        self._check: SameBatches | None = SameBatches(whole, worker)
        self._compare("as it was created")
        self._require_same()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the worker, for a process that reads batches."""
        return {**vars(self), "_check": None}

    @property
    def num_batches(self) -> int | None:
        batches = _batches(self._whole)
        if batches is None:
            return None
        if self._steps is None or self._steps[0] != batches:
            self._steps = batches, self._count_steps(batches)
        return self._steps[1]

    def __len__(self) -> int:
        steps = self.num_batches
        if steps is None:
            raise TypeError(f"{type(self._whole).__name__} has no end: its num_batches is None")
        return steps

    def _count_steps(self, batches: int) -> int:
        """Return the number of steps; the remaining batches make one if each worker gets a row."""
        full, left_over = divmod(batches, self._size)
        if not left_over or _counts(self._whole[batches - 1])[0] >= self._size:
            return full + bool(left_over)
        enough, share = self._remaining(batches)
        if not full and not enough:
            raise ConfigurationError(
                f"got {batches} batches, too few for {self._size} workers, so some would have none: use fewer workers"
            )
        alone = share is not None and not _fit([self._whole[(full - 1) * self._size + self._rank], share])
        return full + (enough or alone)

    def _remaining(self, batches: int) -> tuple[bool, Any]:
        """Return whether each worker has rows of the remaining batches, and this worker's rows."""
        # Batches padded to different lengths are divided one by one, each among some workers.
        first = batches - batches % self._size
        remaining = [self._whole[i] for i in range(first, batches)]
        groups = 1 if _fit(remaining) else len(remaining)
        group = self._rank % groups
        batch = _joined(remaining) if groups == 1 else remaining[group]
        sharing = [len(range(i, self._size, groups)) for i in range(groups)]
        start, stop = shard_bounds(_counts(batch)[0], self._rank // groups, sharing[group])
        counts = [_counts(batch)[0]] if groups == 1 else [_counts(each)[0] for each in remaining]
        enough = all(count >= number for count, number in zip(counts, sharing))
        return enough, map_arrays(batch, lambda array: array[start:stop]) if start < stop else None

    def __getitem__(self, index: int) -> Any:
        self._require_same()
        batches = _batches(self._whole)
        own = index * self._size + self._rank
        if batches is None:
            return self._whole[own]
        full, left_over = divmod(batches, self._size)
        last = bool(left_over) and index == len(self) - 1 and index >= full - 1
        parts = [self._whole[own]] if index < full else []
        share = self._remaining(batches)[1] if last else None
        parts += [] if share is None else [share]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def on_epoch_begin(self) -> None:
        self._call_hook("on_epoch_begin")

    def on_epoch_end(self) -> None:
        self._call_hook("on_epoch_end")

    def _call_hook(self, name: str) -> None:
        """Call an overridden hook of the whole data set, with the same seed on all workers."""
        hook = getattr(self._whole, name, None)
        if hook is None or getattr(hook, "__func__", None) is getattr(_SequenceBase, name, hook):
            return  # Keras's own hook does nothing.
        self._calls += 1
        with seeds.Common([self._seed, self._calls]):
            hook()
        self._compare(f"after its {name} (call {self._calls} of its hooks)")

    def _compare(self, when: str) -> None:
        if self._check is not None:
            self._check.check(when, self._compared)

    def _compared(self) -> list[Any]:
        batches = _batches(self._whole)
        with seeds.Common([self._seed, self._calls]):
            return [self._whole[i] for i in sorted({0, (batches or 1) - 1})]

    def _require_same(self) -> None:
        if self._check is not None:
            self._check.require()


def _fit(batches: list[Any]) -> bool:
    """Return whether the rows of all batches have the same shapes."""
    return len({tuple(np.shape(array)[1:] for array in leaves(batch)) for batch in batches}) == 1


def _joined(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if is_nested(first):
        return type(first)(_joined(list(values)) for values in zip(*batches))
    return None if first is None else np.concatenate(batches)
