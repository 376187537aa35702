"""Records the rows that `shard` has returned, so that a fit can take other rows in each epoch."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import checksum
from platoon_base.sharding import epoch_indices

NAMES = ("x", "y", "sample_weight")  # The arguments of `fit` with rows.
_CHECKED_BYTES = 1 << 24  # Bytes per checksum.


class Cut(NamedTuple):
    """How the rows from ``start`` to ``stop`` are divided; arrays with one cut stay aligned."""

    start: int
    stop: int
    rank: int
    size: int
    uneven: str

    def rows(self, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        n = self.stop - self.start
        dealt = epoch_indices(n, self.rank, self.size, shuffle=True, seed=seed, epoch=epoch, uneven=self.uneven)
        return self.start + dealt


class Part(NamedTuple):
    """The origin of one worker's array, with its checksum if the script may change the array."""

    whole: Any
    cut: Cut
    checksum: int | None

    def is_unchanged(self, array: Any) -> bool:
        return self.checksum is None or _checksum(array) == self.checksum


# The arrays of `shard` by their ids, with their origins; the weak reference removes the entry.
_parts: dict[int, tuple[weakref.ref[Any], Part | None]] = {}


def keep_part(array: Any, whole: Any, cut: Cut, reshuffle: bool, checked: bool = True) -> None:
    """Record an array; also its origin if its rows may be divided again."""
    # Data in a file, on a GPU or of objects are not.
    again = reshuffle and _is_in_memory(array) and _is_in_memory(whole)
    part = Part(whole, cut, _checksum(array) if checked else None) if again else None
    key = id(array)
    with contextlib.suppress(TypeError):  # This class has no weak references.
        _parts[key] = weakref.ref(array, lambda _: _parts.pop(key, None)), part


def is_part(array: Any) -> bool:
    found = _parts.get(id(array))
    return found is not None and found[0]() is array


def too_few(got: str, rows: int, size: int) -> ConfigurationError:
    """Return the error for fewer rows than workers."""
    return ConfigurationError(
        f"got {got} for {size} workers, so some would have none: use fewer workers, or more rows. For validation "
        f"repeat each row, np.repeat(x, {-(-size // max(rows, 1))}, axis=0), which changes no mean, such as the loss"
    )


def part_of(array: Any) -> Part | None:
    return _parts[id(array)][1] if is_part(array) else None


def part_at(array: Any) -> tuple[Any, Part] | None:
    """Return an array of `shard` that ``array`` views with all rows, and its `Part`; or None."""
    if not isinstance(array, np.ndarray):
        return None
    for reference, part in list(_parts.values()):
        mine = reference() if part is not None else None
        if mine is array or (isinstance(mine, np.ndarray) and _place(mine) == _place(array)):
            return mine, part  # type: ignore[return-value]
    return None


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return a key that is equal for an array and a view of all its rows."""
    address, _ = array.__array_interface__["data"]
    return address, array.dtype, array.size, array.shape[:1], array.strides[:1]


def _is_in_memory(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return not isinstance(array, np.memmap) and not array.dtype.hasobject
    if hasattr(array, "iloc"):
        plain = all(getattr(dtype, "kind", "O") in "biuf" for dtype in np.ravel(array.dtypes))
        return plain and not np.asarray(array.iloc[:0]).dtype.hasobject  # Booleans and floats have no common dtype.
    if type(array).__module__.partition(".")[0] == "torch":
        # NumPy has no bfloat16.
        return bool(array.device.type == "cpu") and "bfloat16" not in str(array.dtype)
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _checksum(array: Any) -> int:
    values = np.asarray(array.detach() if hasattr(array, "detach") else array)
    rows = max(1, _CHECKED_BYTES // max(1, values[:1].nbytes))
    found = 0
    for start in range(0, len(values), rows):
        found = checksum(values[start : start + rows], found)
    return found


# Nested data.


def map_arrays(data: Any, function: Callable[[Any], Any]) -> Any:
    if data is None:
        return None
    if isinstance(data, Mapping):
        return {key: map_arrays(value, function) for key, value in data.items()}
    if is_nested(data):
        values = [map_arrays(value, function) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return function(data)


def is_nested(data: Any) -> bool:
    """Return whether data are a list or tuple of arrays, and not of numbers or strings."""
    return isinstance(data, (list, tuple)) and any(
        value is None or hasattr(value, "shape") or isinstance(value, (Mapping, list, tuple)) for value in data
    )


def has_rows(data: Any) -> bool:
    """Return whether data are arrays, alone or nested, and not a set of batches."""
    return hasattr(data, "shape") or isinstance(data, Mapping) or is_nested(data)


def rows_at(array: Any, rows: slice) -> Any:
    """Return some rows of an array, a view where that is possible."""
    return array.iloc[rows] if hasattr(array, "iloc") else array[rows]


def leaves(data: Any) -> Iterator[Any]:
    found: list[Any] = []
    map_arrays(data, found.append)
    return iter(found)
