"""The rows of one call of a `function`: this worker's part, and how it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.data.excerpt import excerpt
from platoon_base.data.shared_data import SharedData
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import shard_bounds
from platoon_base.theano_ops.function_agreement import RowSpec, select
from platoon_base.worker.handle import Worker

__all__ = ["InputRows", "ResidentRows", "split"]

Array = np.ndarray[Any, Any]
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
