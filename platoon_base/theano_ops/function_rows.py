"""The rows of one call of a `function`: which of them are this worker's, and how they are brought here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.data.excerpt import excerpt, require_inside, row_numbers
from platoon_base.data.shared_data import SharedData
from platoon_base.errors import ConfigurationError, RowIndexError
from platoon_base.sharding import shard_bounds
from platoon_base.worker.handle import Worker

__all__ = ["InputRows", "ResidentRows", "split"]

Array = np.ndarray[Any, Any]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class InputRows:
    """The rows of the scattered inputs that one worker computes.

    Parameters
    ----------
    values : sequence of array or SharedData
        All the data, of the same length.
    batch : None, slice or sequence of int
        The rows of this call, None for all. The first worker's list counts for all.
    worker : Worker
    room : dict
        Memory for excerpts, kept from call to call.
    timeout_s : float

    Attributes
    ----------
    counts : list of int
        Rows of each worker.
    """

    def __init__(
        self, values: Sequence[Any], batch: Any, worker: Worker, room: dict[int, Array], timeout_s: float
    ) -> None:
        self._values = [_rows_of(value) for value in values]
        lengths = {len(value) for value in self._values}
        if len(lengths) != 1:
            raise ConfigurationError(
                f"got inputs of {len(lengths)} lengths {sorted(lengths)}: their rows go together, so they must be as "
                "many; name inputs that all workers get whole in broadcast=[...]"
            )
        (length,) = lengths
        self._room = room
        self._numbers: Numbers | None = None
        start, stop, step = (batch or slice(None)).indices(length) if _is_slice(batch) else (0, 0, 0)
        if step == 1:
            total, self._first = max(0, stop - start), start
        else:
            self._numbers = _agreed(batch, length, worker, timeout_s)
            total, self._first = len(self._numbers), 0
        if not total:
            raise ConfigurationError(f"got no rows: batch={batch!r} selects none of {length}")
        bounds = [shard_bounds(total, rank, worker.global_size) for rank in range(worker.global_size)]
        self.counts = [stop - start for start, stop in bounds]
        self._start = bounds[worker.global_rank][0]

    def take(self, start: int, stop: int) -> list[Array]:
        """Return rows of this worker's part; if it is empty, the first row of the next worker's."""
        first, last = self._start + start, self._start + max(stop, start + 1)
        if self._numbers is None:
            return [value[self._first + first : self._first + last] for value in self._values]
        numbers = self._numbers[first:last]
        return [self._excerpt(i, value, numbers) for i, value in enumerate(self._values)]

    def _excerpt(self, i: int, value: Array, numbers: Numbers) -> Array:
        if value.flags.c_contiguous and not value.dtype.hasobject:
            return excerpt(value, numbers, self._place(i, value, len(numbers)))
        found: Array = value[numbers]
        return found

    def _place(self, i: int, value: Array, rows: int) -> Array:
        """Return memory for so many rows of an input, which the next call uses again."""
        room = self._room.get(i)
        if room is None or len(room) < rows or room.shape[1:] != value.shape[1:] or room.dtype != value.dtype:
            room = self._room[i] = np.empty((rows, *value.shape[1:]), value.dtype)
        return room[:rows]


class ResidentRows(NamedTuple):
    """The rows of the data sets in one worker's own memory, and the number of rows of each worker.

    Attributes
    ----------
    rows : slice or ndarray
        A slice has both ends, and no step.
    counts : list of int
    """

    rows: slice | Numbers
    counts: list[int]

    @classmethod
    def of(cls, data: Sequence[Any], batch_s: Any, worker: Worker, timeout_s: float) -> ResidentRows:
        """Make sense of ``batch_s``: None, a slice or a list for all workers, or a list of these for each worker."""
        lengths = {_length(variable) for variable in data}
        if len(lengths) != 1:
            raise ConfigurationError(f"got data sets of {sorted(lengths)} rows in sliceable_shareds: make them as long")
        (length,) = lengths
        try:
            rows = cls._own(batch_s, length, worker, timeout_s)
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        except (ConfigurationError, RowIndexError):
            worker.all_gather(np.array([-1]), timeout_s=timeout_s)  # or the others would wait
            raise
        counts = worker.all_gather(np.array([count]), timeout_s=timeout_s)[:, 0].tolist()
        if -1 in counts:
            raise ConfigurationError(f"worker {counts.index(-1)} has refused its batch_s; its own error tells why")
        return cls(rows, counts)

    @staticmethod
    def _own(batch_s: Any, length: int, worker: Worker, timeout_s: float) -> slice | Numbers:
        one_each = isinstance(batch_s, (list, tuple)) and len(batch_s) > 0 and not np.isscalar(batch_s[0])
        if one_each:
            if len(batch_s) != worker.global_size:
                raise ConfigurationError(
                    f"got batch_s of {len(batch_s)} lists for {worker.global_size} workers: pass one for each, or one "
                    "list for all"
                )
            batch_s = batch_s[worker.global_rank]
        if _is_slice(batch_s):
            start, stop, step = (batch_s or slice(None)).indices(length)
            if step == 1:
                return slice(start, max(start, stop))
        numbers = row_numbers(batch_s if batch_s is not None else slice(None), length)
        if one_each or _is_slice(batch_s):
            require_inside(numbers, length)
            return numbers
        return _agreed(numbers, length, worker, timeout_s)

    def take(self, start: int, stop: int) -> slice | Numbers:
        """Return a part of the rows; those of an empty part as the first row of the data."""
        if stop <= start:
            return slice(0, 1) if isinstance(self.rows, slice) else np.zeros(1, np.int64)
        if isinstance(self.rows, slice):
            return slice(self.rows.start + start, self.rows.start + stop)
        return self.rows[start:stop]


def split(rows: int, parts: int) -> list[tuple[int, int]]:
    """Return starts and stops of so many slices of the rows, without the empty ones; one if there are no rows."""
    bounds = [shard_bounds(rows, part, parts) for part in range(parts)]
    return [(start, stop) for start, stop in bounds if start < stop] or [(0, 0)]


def _is_slice(batch: Any) -> bool:
    return batch is None or isinstance(batch, slice)


def _rows_of(value: Any) -> Array:
    return np.asarray(value.array if isinstance(value, SharedData) else value)


def _length(variable: Any) -> int:
    return int(variable.get_value(borrow=True, return_internal_type=True).shape[0])


def _agreed(batch: Any, length: int, worker: Worker, timeout_s: float) -> Numbers:
    """Return the first worker's list, so that scripts may shuffle without a common seed; all refuse a wrong index."""
    numbers = row_numbers(batch, length)
    if worker.global_size > 1:
        numbers = numbers.copy()
        worker.broadcast([numbers], timeout_s=timeout_s)
    require_inside(numbers, length)
    return numbers
