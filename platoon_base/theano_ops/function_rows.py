"""The rows of one call of a `function`: this worker's part, after all agree on function, inputs and rows."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.data.excerpt import excerpt, require_inside, row_numbers
from platoon_base.data.shared_data import SharedData
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError, PlatoonError, RowIndexError
from platoon_base.fingerprint import checksum, fingerprint
from platoon_base.sharding import shard_bounds
from platoon_base.worker.handle import Worker

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class InputRows:
    """The rows of the scattered inputs that one worker computes."""

    def __init__(self, values: Sequence[Any], batch: Any, room: dict[int, Array]) -> None:
        self._values = [_rows_of(value) for value in values]
        lengths = {len(value) for value in self._values}
        if len(lengths) != 1:
            raise ConfigurationError(
                f"got inputs of {len(lengths)} lengths {sorted(lengths)}: they must have the same "
                "number of rows; name inputs that all workers receive whole in broadcast=[...]"
            )
        (self._length,) = lengths
        self._buffers = room
        self.selection = select(batch, self._length)

    def agree(self, every: Sequence[RowSpec], worker: Worker, timeout_s: float) -> None:
        self._rows, (total, *_) = self.selection.agreed(every, worker, timeout_s)
        if not total:
            raise ConfigurationError(f"got no rows: batch selects none of {self._length} on the first worker")
        bounds = [shard_bounds(total, rank, worker.global_size) for rank in range(worker.global_size)]
        self.counts = [stop - start for start, stop in bounds]
        self._start = bounds[worker.global_rank][0]

    def take(self, start: int, stop: int) -> list[Array]:
        """Return rows of this worker's part; if it is empty, the first row of the next worker's."""
        first, last = self._start + start, self._start + max(stop, start + 1)
        if isinstance(self._rows, slice):
            return [value[self._rows.start + first : self._rows.start + last] for value in self._values]
        numbers = self._rows[first:last]
        return [self._excerpt(i, value, numbers) for i, value in enumerate(self._values)]

    def _excerpt(self, i: int, value: Array, numbers: Numbers) -> Array:
        if value.flags.c_contiguous and not value.dtype.hasobject:
            return excerpt(value, numbers, self._place(i, value, len(numbers)))
        found: Array = value[numbers]
        return found

    def _place(self, i: int, value: Array, rows: int) -> Array:
        room = self._buffers.get(i)
        if room is None or len(room) < rows or room.shape[1:] != value.shape[1:] or room.dtype != value.dtype:
            room = self._buffers[i] = np.empty((rows, *value.shape[1:]), value.dtype)
        return room[:rows]


class ResidentRows:
    """The rows of the data sets in one worker's own memory."""

    def __init__(self, data: Sequence[Any], batch_s: Any, worker: Worker) -> None:
        lengths = {_length(variable) for variable in data}
        if len(lengths) != 1:
            raise ConfigurationError(
                f"got data sets of {sorted(lengths)} rows in sliceable_shareds: they must have the same number of rows"
            )
        (length,) = lengths
        one_each = isinstance(batch_s, (list, tuple)) and len(batch_s) > 0 and not np.isscalar(batch_s[0])
        if one_each:
            if len(batch_s) != worker.global_size:
                raise ConfigurationError(
                    f"got batch_s of {len(batch_s)} lists for {worker.global_size} workers: pass one for each, or one "
                    "list for all"
                )
            batch_s = batch_s[worker.global_rank]
        self.selection = select(batch_s, length, own=one_each)

    def agree(self, every: Sequence[RowSpec], worker: Worker, timeout_s: float) -> None:
        self.rows, self.counts = self.selection.agreed(every, worker, timeout_s)
        if not sum(self.counts):
            raise ConfigurationError("got no rows: batch_s selects none on any worker")

    def take(self, start: int, stop: int) -> slice | Numbers:
        """Return a part of the rows; for an empty part the first row of the data."""
        if stop <= start:
            return slice(0, 1) if isinstance(self.rows, slice) else np.zeros(1, np.int64)
        if isinstance(self.rows, slice):
            return slice(self.rows.start + start, self.rows.start + stop)
        return self.rows[start:stop]


def split(rows: int, parts: int) -> list[tuple[int, int]]:
    """Return starts and stops of the non-empty slices; one slice if there are no rows."""
    bounds = [shard_bounds(rows, part, parts) for part in range(parts)]
    return [(start, stop) for start, stop in bounds if start < stop] or [(0, 0)]


def _rows_of(value: Any) -> Array:
    rows = np.asarray(value.array if isinstance(value, SharedData) else value)
    if not rows.ndim:
        raise ConfigurationError(
            f"got {type(value).__name__} without rows for an input that is scattered by rows: pass an array of all "
            "rows, or name the input in broadcast=[...]"
        )
    return rows


def _length(variable: Any) -> int:
    return int(variable.get_value(borrow=True, return_internal_type=True).shape[0])


_SLICE, _LIST, _OWN = range(3)
# In place of a missing end of a slice.
_NO_END = np.iinfo(np.int64).min
_FARTHEST = 1 << 62
# Bytes that are read of each of three rows.
_SAMPLED_BYTES = 2048
# Characters of another worker's error or value within this worker's error.
_TEXT = 400


class RowSpec(NamedTuple):
    """Rows that one worker selects from ``length`` rows: a slice, a list, or its own rows."""

    length: int = 0
    kind: int = _SLICE
    start: int = _NO_END
    stop: int = _NO_END
    step: int = _NO_END
    # Number of rows of a list, and the checksum of their numbers.
    selected: int = 0
    crc: int = 0


class Header(NamedTuple):
    """One worker's call. If ``refused`` is 1, the worker raised an error, and the rest is unset."""

    refused: int
    function: int = 0
    values: int = 0
    batch: RowSpec = RowSpec()
    batch_s: RowSpec = RowSpec()

    def numbers(self) -> Numbers:
        """Return a vector of fixed length."""
        return np.array([self.refused, self.function, self.values, *self.batch, *self.batch_s], np.int64)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Header:
        width = len(RowSpec._fields)
        return cls(numbers[0], numbers[1], numbers[2], RowSpec(*numbers[3 : 3 + width]), RowSpec(*numbers[3 + width :]))


class Selection(NamedTuple):
    """Rows that the script on one worker selects; `agreed` returns those of all workers."""

    rows: slice | Numbers
    spec: RowSpec

    def agreed(self, every: Sequence[RowSpec], worker: Worker, timeout_s: float) -> tuple[slice | Numbers, list[int]]:
        """Return this call's rows, and their number on each worker; rank 0 selects."""
        first, length = every[0], self.spec.length
        if len({told.kind == _OWN for told in every}) > 1:
            raise ConfigurationError(
                "got batch_s for each worker on some workers, and one for all on others: pass the same kind on all"
            )
        if first.kind == _OWN:
            return self.rows, [told.selected for told in every]
        if first.kind == _SLICE:
            ends = slice(*(None if end == _NO_END else end for end in (first.start, first.stop, first.step)))
            return plain(ends, length), [len(range(*ends.indices(told.length))) for told in every]
        numbers = np.asarray(self.rows)
        if any((told.kind, told.selected, told.crc) != (_LIST, first.selected, first.crc) for told in every):
            numbers = np.array(numbers) if worker.global_rank == 0 else np.empty(first.selected, np.int64)
            worker.broadcast([numbers], timeout_s=timeout_s)
        require_inside(numbers, min(told.length for told in every))
        return numbers, [first.selected] * len(every)


def select(chosen: Any, length: int, *, own: bool = False) -> Selection:
    """Return a selection of ``length`` rows; a number n stands for the first n rows."""
    chosen = slice(None) if chosen is None else chosen
    if isinstance(chosen, (int, np.integer)) and not isinstance(chosen, bool):
        if not 0 <= chosen <= length:
            raise RowIndexError(f"got {chosen} as rows, which means the first {chosen} rows: there are only {length}")
        chosen = slice(0, int(chosen))
    if own:
        rows = plain(chosen, length) if isinstance(chosen, slice) else row_numbers(chosen, length)
        if isinstance(rows, slice):
            return Selection(rows, RowSpec(length, _OWN, selected=rows.stop - rows.start))
        require_inside(rows, length)
        return Selection(rows, RowSpec(length, _OWN, selected=len(rows)))
    if isinstance(chosen, slice):
        # This raises if an end or the step is invalid.
        chosen.indices(length)
        return Selection(chosen, RowSpec(length, _SLICE, *map(_end, (chosen.start, chosen.stop, chosen.step))))
    numbers = row_numbers(chosen, length)
    return Selection(numbers, RowSpec(length, _LIST, selected=len(numbers), crc=zlib.crc32(numbers.data)))


def plain(rows: slice, length: int) -> slice | Numbers:
    """Return a slice with both ends, or row numbers if it has a step."""
    start, stop, step = rows.indices(length)
    return slice(start, max(start, stop)) if step == 1 else np.arange(start, stop, step, dtype=np.int64)


def _end(end: Any) -> int:
    return _NO_END if end is None else max(-_FARTHEST, min(operator.index(end), _FARTHEST))


def input_checksum(value: Any, *, whole: bool) -> int:
    """Return a checksum of an input; only three of scattered rows are read, for a constant cost."""
    if isinstance(value, SharedData):
        return zlib.crc32(repr((value.name, value.shape)).encode())
    array = np.asarray(value)
    if array.dtype.hasobject:
        return zlib.crc32(fingerprint(value).encode())
    crc = zlib.crc32(repr((array.dtype.str, array.shape)).encode())
    if whole or not array.ndim:
        return checksum(array, crc)
    for i in (0, len(array) // 2, len(array) - 1) if array.size else ():
        crc = checksum(np.ascontiguousarray(array[i]).reshape(-1)[: max(1, _SAMPLED_BYTES // array.itemsize)], crc)
    return crc


def exchange(worker: Worker, mine: Header, described: str, timeout_s: float) -> list[Header]:
    """Return the headers of all workers; raise on all if one has refused, or functions differ."""
    if worker.global_size == 1:
        return [mine]
    every = [Header.of(row) for row in worker.all_gather(mine.numbers(), timeout_s=timeout_s).tolist()]
    if any(header.refused for header in every):
        texts = worker.gather("", name="refused call of a function", timeout_s=timeout_s)
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
        raise ConfigurationError(
            f"worker {rank} refused its arguments of this call of a function: {text}. All workers "
            "must pass the same arguments: look for what differs there"
        )
    if len({header.function for header in every}) > 1:
        texts = worker.gather(described[:_TEXT], name="other function", timeout_s=timeout_s)
        raise ConfigurationError(
            f"the workers call different functions at the same time: {_by_worker(texts)}. All of "
            "them must make all calls in the same order: look for a call that only some make, "
            "such as one after `if worker.global_rank == 0:`"
        )
    return every


def refuse(worker: Worker, error: Exception, timeout_s: float) -> None:
    """Report to the others that this worker has refused its arguments."""
    if worker.global_size == 1:
        return
    try:
        worker.all_gather(Header(refused=1).numbers(), timeout_s=timeout_s)
        worker.gather(
            f"{type(error).__name__}: {error}"[:_TEXT], name="refused call of a function", timeout_s=timeout_s
        )
    except PlatoonError:
        # This worker raises its own error.
        pass


def require_same_values(
    worker: Worker, every: Sequence[Header], inputs: Sequence[Any], values: Sequence[Any], scattered: Sequence[int],
    timeout_s: float,
) -> None:  # fmt: skip
    """Raise on all workers, naming the input, if the checksums of the values differ."""
    if len({header.values for header in every}) == 1:
        return
    own = np.array([input_checksum(value, whole=i not in scattered) for i, value in enumerate(values)], np.int64)
    differs = (np.ptp(worker.all_gather(own, timeout_s=timeout_s), axis=0) != 0).nonzero()[0]
    i = int(differs[0]) if len(differs) else 0
    texts = worker.gather(_shown(values[i]), name="other value", timeout_s=timeout_s)
    rule = (
        "every worker passes all rows, in the same order, and computes a part of them"
        if i in scattered
        else (
            "inputs without axes, and those in broadcast, must be the same on every worker, or "
            "their parameters would differ afterwards"
        )
    )
    raise ConfigurationError(
        f"the workers pass different values for input {i + 1}, {inputs[i]}: {_by_worker(texts)}: "
        f"{rule}. Draw random values and shuffles from a generator with the same seed on all "
        "workers, such as numpy.random.RandomState(0), or use the first worker's: "
        "worker.broadcast([array])"
    )


def _by_worker(texts: Sequence[str]) -> str:
    return "; ".join(f"worker {rank}: {text}" for rank, text in enumerate(texts))


def _shown(value: Any) -> str:
    if isinstance(value, SharedData):
        return f"SharedData {value.name!r} of shape {value.shape}"
    array = np.asarray(value)
    if array.dtype.hasobject:
        return type(value).__name__
    start = ", ".join(map(str, array.flat[:3]))
    if not array.ndim:
        return f"{start} ({array.dtype})"
    return f"{array.dtype} of shape {array.shape}, [{start}{', ...' if array.size > 3 else ''}]"[:_TEXT]
