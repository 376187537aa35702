"""The order of a tf.data.Dataset: fixed by its graph, or compared by running checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.read_order import KINDS, ROUNDS, Mark, Reading, labels_of, register

__all__ = ["comparable", "is_in_order", "sources", "watched"]

_REMEDY = (
    "Each worker takes every N-th batch of the data, so all must read the same batches in the same order. Seed the "
    "generators that from_generator and map call, such as numpy.random.default_rng(0): NumPy's own generator differs "
    "between workers during fit. Leave deterministic=False out, and give shuffles a seed. If the script itself "
    "divides the data among the workers, pass callbacks=distribute([...]) to fit, which then takes them as they are"
)
_UNSEEDED = (
    "got a tf.data.Dataset that shuffles without a seed: in another order on each worker, so their parts would overlap "
    "and miss rows. Give it one, dataset.shuffle(n, seed=0), or import `prepare` after tensorflow and before the data "
    "set is made: that seeds TensorFlow alike on all workers, if the script has not done it"
)
# Datasets that read their input in order, or shuffle it by a seed.
_IN_ORDER = (
    *("AssertCardinality", "Batch", "Cache", "Concatenate", "Dense", "Filter", "Map", "Options", "PaddedBatch"),
    *("ParallelBatch", "ParallelMap", "Prefetch", "RaggedBatch", "Range", "Repeat", "Scan", "Shard", "Shuffle", "Skip"),
    *("Take", "TakeWhile", "Tensor", "TensorSlice", "Unbatch", "Window", "Zip"),
)
# Number of readings whose marks are kept, and number of marks, after 1, 2, 4, ... batches.
_PASSES, _POWERS = 4, 31


def sources(dataset: Any) -> Iterator[Any]:
    """Yield a tf.data.Dataset and all data sets that it is made from."""
    yield dataset
    for made_from in dataset._inputs() if hasattr(dataset, "_inputs") else ():
        yield from sources(made_from)


def comparable(dataset: Any, worker: Worker, what: str) -> Any:
    """Return an equal data set whose order is fixed or compared; raise if it shuffles unseeded."""
    import tensorflow as tf

    made_from = list(sources(dataset))
    if any(_shuffles_at_random(source) for source in made_from):
        raise ConfigurationError(_UNSEEDED)
    if dataset.options().deterministic is False:  # A later option overrides it.
        options = tf.data.Options()
        options.deterministic = True
        dataset = dataset.with_options(options)
    if all(is_in_order(source) for source in made_from):
        return dataset
    order = _DatasetOrder(f"the tf.data.Dataset {what}", worker.global_size)
    register(order, worker)
    return order.watch(dataset)


def watched(dataset: Any, size: int) -> Any:
    """Return a data set that keeps checksums as `comparable` does, for ``size`` workers."""
    return _DatasetOrder("", size).watch(dataset)


def is_in_order(source: Any) -> bool:
    """Return whether a data set has the same order in each process if its inputs have."""
    name = type(source).__name__.strip("_").replace("DatasetV2", "Dataset")
    in_order = name[: -len("Dataset")] in _IN_ORDER
    return in_order and getattr(source, "_deterministic", None) not in (False, "false")


def _shuffles_at_random(source: Any) -> bool:
    if "Shuffle" not in type(source).__name__:
        return False
    seeds = [getattr(source, name, 0) for name in ("_seed", "_seed2")]
    return not any(int(seed) for seed in seeds)


class _DatasetOrder:
    """The order of a tf.data.Dataset, see `read_order.Order`."""

    # The rows of `_marks` are (batches, everything, labels, kinds): for the latest batch, for each
    # power of two, and for the latest rounds.

    def __init__(self, what: str, size: int) -> None:
        import tensorflow as tf

        self.what, self.remedy, self._size = what, _REMEDY, size
        with tf.device("CPU:0"):
            self._number = tf.Variable(tf.zeros((), tf.int64), trainable=False)
            self._marks = tf.Variable(
                tf.zeros((_PASSES, 1 + _POWERS + ROUNDS, len(Mark._fields)), tf.int64), trainable=False
            )

    def watch(self, dataset: Any) -> Any:
        """Return a data set that records its order here whenever it is read."""
        import tensorflow as tf

        cardinality = dataset.cardinality()
        begin = tf.zeros(4 + KINDS, tf.int64)
        watched = dataset.scan(begin, tf.autograph.experimental.do_not_convert(self._step))
        known = int(cardinality) != tf.data.UNKNOWN_CARDINALITY
        return watched.apply(tf.data.experimental.assert_cardinality(cardinality)) if known else watched

    def _step(self, state: Any, element: Any) -> Any:
        """Record a batch; ``state``: (reading, batches, everything, labels, different labels)."""
        import tensorflow as tf

        own = _hash(tf.nest.flatten(labels_of(element), expand_composites=True))
        everything = _mixed(state[2], _hash(tf.nest.flatten(element, expand_composites=True)))
        labels, known, count = _mixed(state[3], own), state[4:], state[1] + 1
        number = tf.cond(count > 1, lambda: state[0], self._begin)
        kinds = tf.math.count_nonzero(known)
        place = tf.logical_and(tf.range(KINDS, dtype=tf.int64) == kinds, tf.reduce_all(known != own))
        known = tf.where(place, own, known)
        power = tf.cast(tf.round(tf.math.log(tf.cast(count, tf.float64)) / 0.6931471805599453), tf.int64)
        is_power = tf.bitwise.bitwise_and(count, count - 1) == 0
        rounds = 1 + _POWERS + count // self._size % ROUNDS
        # Unused places write to the first row, which has the latest batch anyway.
        places = tf.stack([0, tf.where(is_power, 1 + power, 0), tf.where(count % self._size == 0, rounds, 0)])
        mark = tf.stack([count, everything, labels, tf.math.count_nonzero(known)])
        at = tf.stack([tf.repeat(number % _PASSES, 3), tf.cast(places, tf.int64)], axis=1)
        self._marks.scatter_nd_update(at, tf.tile(mark[None], [3, 1]))
        return tf.concat([tf.stack([number, count, everything, labels]), known], 0), element

    def _begin(self) -> Any:
        import tensorflow as tf

        number = self._number.assign_add(1)
        self._marks.scatter_nd_update([[number % _PASSES]], tf.zeros((1, *self._marks.shape[1:]), tf.int64))
        return number

    def reading(self) -> Reading:
        number = int(self._number)
        rows = self._marks.numpy()[number % _PASSES].tolist()
        return Reading(number, [Mark(*row) for row in rows if row[0]])


def _mixed(before: Any, value: Any) -> Any:
    return before * 6364136223846793005 + value


def _hash(tensors: list[Any]) -> Any:
    """Return a hash of a sample of the values of tensors."""
    import tensorflow as tf

    found = []
    for tensor in tensors:
        if tensor.dtype not in (tf.variant, tf.resource):
            flat = tf.reshape(tensor, [-1])
            sample = flat[:: tf.bitwise.bitwise_or(tf.size(flat) // 4096, 1)]
            found.append(tf.raw_ops.Fingerprint(data=sample[None], method="farmhash64")[0])
    if len(found) > 1:
        found = [tf.raw_ops.Fingerprint(data=tf.concat(found, 0)[None], method="farmhash64")[0]]
    return tf.bitcast(found[0], tf.int64) if found else tf.zeros((), tf.int64)
