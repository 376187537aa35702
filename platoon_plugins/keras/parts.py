"""The arrays that `shard` returned: which rows of which whole they are, so that a fit can take others of it."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from platoon_base.sharding import epoch_indices

__all__ = ["Cut", "Part", "is_nested", "keep_part", "leaves", "map_arrays", "part_at", "part_of"]

_CHECKED_BYTES = 1 << 24  # at a time


class Cut(NamedTuple):
    """How the rows of a whole are dealt out: arrays of one cut stay together row by row in each epoch.

    Attributes
    ----------
    start, stop : int
        The rows of the whole that are dealt out.
    rank, size : int
    uneven : {"keep", "drop", "wrap"}
    """

    start: int
    stop: int
    rank: int
    size: int
    uneven: str

    def rows(self, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return this worker's rows of the whole in an epoch; see `platoon_base.sharding.epoch_indices`."""
        n = self.stop - self.start
        dealt = epoch_indices(n, self.rank, self.size, shuffle=True, seed=seed, epoch=epoch, uneven=self.uneven)
        return self.start + dealt


class Part(NamedTuple):
    """An array of this worker, as a part of a whole.

    Attributes
    ----------
    whole : array
    cut : Cut
    checksum : int
        Of the part when it was made.
    """

    whole: Any
    cut: Cut
    checksum: int

    def is_unchanged(self, array: Any) -> bool:
        """Whether the array has the values that it was made with."""
        return _checksum(array) == self.checksum


# By the id of the array, with a weak reference that takes the entry out when the array goes.
_parts: dict[int, tuple[weakref.ref[Any], Part]] = {}


def keep_part(array: Any, whole: Any, cut: Cut) -> None:
    """Remember where an array is from, as long as it lives. Of data in files nothing is kept."""
    if not (_is_in_memory(array) and _is_in_memory(whole)):
        return
    key = id(array)
    try:
        reference = weakref.ref(array, lambda _: _parts.pop(key, None))
    except TypeError:  # not of this class
        return
    _parts[key] = reference, Part(whole, cut, _checksum(array))


def part_of(array: Any) -> Part | None:
    """Return where an array is from; None if it is not one that `shard` returned."""
    found = _parts.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def part_at(array: Any) -> tuple[Any, Part] | None:
    """Return the array that `shard` returned whose rows an array has, perhaps in another shape, and its `Part`."""
    if not isinstance(array, np.ndarray):
        return None
    for reference, part in list(_parts.values()):
        mine = reference()
        if mine is array or (isinstance(mine, np.ndarray) and _place(mine) == _place(array)):
            return mine, part
    return None


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return the same for an array and a view of all of it by rows, such as one of a column for a vector."""
    address, _ = array.__array_interface__["data"]
    return address, array.dtype, array.size, array.shape[:1], array.strides[:1]


def _is_in_memory(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return not isinstance(array, np.memmap) and not array.dtype.hasobject
    if hasattr(array, "iloc"):
        return all(getattr(dtype, "kind", "O") in "biuf" for dtype in np.ravel(array.dtypes))
    if type(array).__module__.partition(".")[0] == "torch":
        return bool(array.device.type == "cpu") and "bfloat16" not in str(array.dtype)  # which NumPy has not
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _checksum(array: Any) -> int:
    values = np.asarray(array.detach() if hasattr(array, "detach") else array)
    rows = max(1, _CHECKED_BYTES // max(1, values[:1].nbytes))
    checksum = 0
    for start in range(0, len(values), rows):
        checksum = zlib.crc32(np.ascontiguousarray(values[start : start + rows]).view(np.uint8), checksum)
    return checksum


# Nested data.


def map_arrays(data: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays in nested data; None stays."""
    if data is None:
        return None
    if isinstance(data, Mapping):
        return {key: map_arrays(value, function) for key, value in data.items()}
    if is_nested(data):
        values = [map_arrays(value, function) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return function(data)


def is_nested(data: Any) -> bool:
    """Whether a list or tuple holds arrays, or is one itself: of numbers or strings."""
    return isinstance(data, (list, tuple)) and any(
        value is None or hasattr(value, "shape") or isinstance(value, (Mapping, list, tuple)) for value in data
    )


def leaves(data: Any) -> Iterator[Any]:
    """Yield the arrays in nested data."""
    found: list[Any] = []
    map_arrays(data, found.append)
    return iter(found)
