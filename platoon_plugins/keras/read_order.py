"""Compares the batches that workers read, by running checksums at the end of each epoch.

Each worker reads all batches and takes every N-th, so all must read them in the same order.
"""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from platoon_base import Worker
from platoon_base.errors import DataMismatchError
from platoon_base.fingerprint import plain

__all__ = [
    "KINDS", "REMEDY", "ROUNDS", "Mark", "Order", "ReadOrder", "Reading", "describe", "difference",
    "first_batches_agree", "labels_of", "register", "require_same_orders",
]  # fmt: skip

# This many different labels identify the batches, whatever the inputs.
KINDS = 8
# Number of the latest rounds (one batch per worker) with a checksum.
ROUNDS = 8
REMEDY = (
    "Each worker takes every N-th batch of the data, so all must read the same batches in the same order. Draw the "
    "order by the global generators of NumPy, Python or torch, which are equal on all workers while the data are read "
    "in fit, or give its own generator a seed, such as numpy.random.default_rng(0). If the script itself divides the "
    "data among the workers, pass callbacks=distribute([...]) to fit, which then takes them as they are"
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


class Order(Protocol):
    """The order in which a worker reads one data set; ``what`` names the data in errors."""

    what: str
    remedy: str

    def reading(self) -> Reading:
        """Return the current reading; another thread may be reading the data."""
        ...


class ReadOrder:
    """The order of data that are read in Python, for ``size`` workers; see `Order`."""

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
