"""The order in which workers read their batches, compared by running checksums at the end of each epoch.

Each worker reads all batches and takes every N-th, so all must read them in the same order.
"""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, DataMismatchError
from platoon_base.fingerprint import plain

# This many different labels identify the batches, whatever the inputs.
KINDS = 8
# Number of the latest rounds (one batch per worker) with a checksum.
ROUNDS = 8
REMEDY = (
    "Each worker takes every N-th batch of the data, so all must read the same batches in the "
    "same order. Draw the order with the global generators of NumPy, Python or torch, which are "
    "equal on all workers while fit reads the data, or seed your own generator, for example "
    "numpy.random.default_rng(0). If the script itself divides the data among the workers, pass "
    "callbacks=distribute([...]) to fit, which uses them undivided"
)
_SAMPLED = 256  # The number of compared values of an array.
_REPORTED = 6  # The number of the latest data sets that are compared.
_MASK = 0xFFFFFFFF


class Mark(NamedTuple):
    """Running checksums after some batches, and the number of different labels, at most `KINDS`."""

    batches: int
    everything: int
    labels: int
    kinds: int


class Reading(NamedTuple):
    """The batches of the ``number``-th time that a worker reads the data."""

    number: int
    marks: list[Mark]


class ReadOrder:
    """The order of data that are read in Python; ``what`` names them in errors."""

    def __init__(self, what: str, remedy: str, size: int) -> None:
        self.what, self.remedy, self._size = what, remedy, size
        self._number = 0
        self.begin()

    def begin(self) -> None:
        self._number += 1
        self._mark = Mark(0, 0, 0, 0)
        self._labels: set[int] = set()
        self._first: list[Mark] = []
        self._rounds: deque[Mark] = deque(maxlen=ROUNDS)

    @property
    def batches(self) -> int:
        return self._mark.batches

    def add(self, batch: Any) -> None:
        labels = _checksum(labels_of(batch), 0)
        if len(self._labels) < KINDS:
            self._labels.add(labels)
        before = self._mark
        everything = _checksum(batch, before.everything)
        count = before.batches + 1
        mark = Mark(count, everything, zlib.crc32(labels.to_bytes(4, "little"), before.labels), len(self._labels))
        self._mark = mark
        if not count & (count - 1):
            self._first.append(mark)
        if not count % self._size:
            self._rounds.append(mark)

    def reading(self) -> Reading:
        """Return the current reading; another thread may be reading the data."""
        return Reading(self._number, [*self._first, *self._rounds, self._mark])


def labels_of(batch: Any) -> Any:
    """Return the targets and sample weights of a batch; all of it if it has none."""
    return batch[1:] if isinstance(batch, (tuple, list)) and len(batch) > 1 else batch


def _checksum(data: Any, before: int) -> int:
    """Return the CRC-32 of a sample of the values of nested arrays."""
    if isinstance(data, Mapping):
        for key in sorted(data, key=str):
            before = _checksum(data[key], before)
        return before
    if isinstance(data, (tuple, list)) and not (data and isinstance(data[0], (int, float, str))):
        for each in data:
            before = _checksum(each, before)
        return before
    if data is None:
        return before
    values = data if type(data) is np.ndarray else np.asarray(plain(data))
    flat = values.ravel("K")
    sample = flat[:: flat.size // _SAMPLED | 1]
    return zlib.crc32(repr(sample.tolist()).encode() if values.dtype.hasobject else sample.tobytes(), before)


# Weak references to the data that each worker reads, by their number.
_orders: weakref.WeakKeyDictionary[Worker, weakref.WeakValueDictionary[int, Any]] = weakref.WeakKeyDictionary()
_numbers: weakref.WeakKeyDictionary[Worker, Iterator[int]] = weakref.WeakKeyDictionary()
_sent: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()


def register(order: Any, worker: Worker) -> int:
    """Compare this order with those of other workers from now on; return its common number."""
    number = next(_numbers.setdefault(worker, itertools.count(1)))
    _orders.setdefault(worker, weakref.WeakValueDictionary())[number] = order
    return number


def first_batches_agree(worker: Worker, batch: int) -> bool:
    """Return whether the first labels are those of other workers so far, without waiting."""
    # Call it at every batch. Only the later worker detects a difference.
    if batch & (batch - 1) or worker not in _orders or worker.late:
        return True
    for number, order in sorted(_orders[worker].items()):
        reading = order.reading()
        last, sent = _sent.get(order, (0, 0))
        for mark in sorted(set(reading.marks)):
            if mark.batches > (sent if last == reading.number else 0) and not mark.batches & (mark.batches - 1):
                _sent[order] = reading.number, mark.batches
                name = f"{order.what} (data set {number}, reading {reading.number}, batch {mark.batches})"
                try:
                    worker.advanced.require_same(name, f"{mark.labels & _MASK:016x}", order.remedy)
                except DataMismatchError:
                    return False
    return True


def describe(worker: Worker) -> list[Any]:
    """Return what this worker has read, as plain data for `require_same_orders`."""
    orders = sorted(_orders.get(worker, {}).items())[-_REPORTED:]
    readings = [(number, order.reading()) for number, order in orders]
    return [
        [number, read.number, [[m.batches, m.everything & _MASK, m.labels & _MASK, m.kinds] for m in set(read.marks)]]
        for number, read in readings
    ]


def require_same_orders(worker: Worker, told: list[Any]) -> None:
    """Raise if workers have read different batches; ``told`` has each rank and its `describe`."""
    first_rank, first = told[0]
    for rank, theirs in told[1:]:
        for (number, reading, marks), (other, other_reading, other_marks) in itertools.product(first, theirs):
            if (number, reading) != (other, other_reading):
                continue
            differing = difference([Mark(*mark) for mark in marks], [Mark(*mark) for mark in other_marks])
            if differing:
                order = _orders[worker].pop(number, None)  # It is not compared again.
                what, remedy = ("the data", "") if order is None else (order.what, order.remedy)
                where = f"the first {differing} batches" if differing > 1 else "the first batch"
                raise DataMismatchError(
                    f"{what} differs between rank {first_rank} and rank {rank}, already in {where}.\n{remedy}"
                )


def difference(marks: list[Mark], others: list[Mark]) -> int:
    """Return the number of batches within which two readings differ; 0 if they do not."""
    # Inputs may vary at random if the labels identify the batches.
    theirs = {mark.batches: mark for mark in others if mark.batches}
    both = sorted((mark, theirs[mark.batches]) for mark in marks if mark.batches in theirs)
    if not both or both[-1][0].everything == both[-1][1].everything:
        return 0
    last, _ = both[-1]
    if last.labels == both[-1][1].labels and last.kinds >= min(KINDS, last.batches):
        return 0
    return next(mine.batches for mine, other in both if mine.everything != other.everything)


_REMEDY = (
    "Each worker takes every N-th batch of the data, so all must read the same batches in the "
    "same order. Seed the generators in functions for from_generator and map, for example "
    "numpy.random.default_rng(0): NumPy's global generator differs between workers during fit. "
    "Seed shuffles, and do not pass deterministic=False. If the script itself divides the data "
    "among the workers, pass callbacks=distribute([...]) to fit, which uses them undivided"
)
_UNSEEDED = (
    "got a tf.data.Dataset that shuffles without a seed, in another order on each worker, so "
    "their parts would overlap and miss rows. Pass a seed, dataset.shuffle(n, seed=0). Or import "
    "`prepare` after tensorflow and before the data set is made, which seeds TensorFlow equally "
    "on all workers unless the script has done so"
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
    """The order of a tf.data.Dataset, with the public members of a `ReadOrder`."""

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
