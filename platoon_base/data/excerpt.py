"""Rows of an array by their numbers: by the C extension without the GIL, or by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError, RowIndexError
from platoon_base.sharding import shard_bounds
from platoon_base.system.imports import extension

_excerpt: Any = extension("_excerpt")

HAVE_FUSED = _excerpt is not None
_THREAD_BYTES = 1 << 20  # Copying this takes several times as long as starting a thread.
_MAX_THREADS = 64  # The same as in _excerpt.c.
_STREAM_BYTES = 1 << 24  # The same as in _excerpt.c.
_FIRST = np.zeros(1, np.int64)


def excerpt(rows: Array, indices: Any, out: Array | None = None, *, threads: int = 1) -> Array:
    """Return the rows of these numbers, in their order: ``out[i] := rows[indices[i]]``.

    Parameters
    ----------
    rows : ndarray, C-contiguous, of one or more dimensions
        In memory, in shared memory or memory-mapped.
    indices : sequence of int, slice, or 1-d bool array as long as ``rows``
        Negative numbers count from the end, as in NumPy.
    out : ndarray, C-contiguous, of shape ``(len(indices), *rows.shape[1:])``, optional
        Receives the result, in the dtype of ``rows``, which it must not overlap. Reuse one in
        training loops: a new array costs as much time as the copy, since the kernel has to clear
        its pages.
    threads : int
        Number of threads that may copy simultaneously; small excerpts use fewer.

    Raises
    ------
    RowIndexError
        If an index is out of range; ``out`` is unchanged.
    ConfigurationError
        If an argument is invalid.
    """
    if not isinstance(rows, np.ndarray) or not rows.ndim or not rows.flags.c_contiguous or rows.dtype.hasobject:
        raise ConfigurationError(
            f"got rows of {_kind(rows)}: rows must be a C-contiguous array of numbers; pass "
            "numpy.ascontiguousarray(rows)"
        )
    if threads < 1:
        raise ConfigurationError(f"got threads={threads!r}: it must be 1 or more")
    # A copy, since another thread may change the caller's array after the check.
    numbers = row_numbers(indices, len(rows)).copy()
    shape = (len(numbers), *rows.shape[1:])
    if out is None:
        out = np.empty(shape, rows.dtype)
    elif not isinstance(out, np.ndarray):
        raise ConfigurationError(f"got out of {_kind(out)}: out must be an array, such as numpy.empty({shape}, ...)")
    elif out.shape != shape or out.dtype != rows.dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise ConfigurationError(
            f"got out of {_kind(out)}: the excerpt has shape {shape} and dtype {rows.dtype}, and "
            "out must be a writable C-contiguous array"
        )
    elif np.may_share_memory(out, rows):
        raise ConfigurationError("got out in the memory of the rows: pass a separate array")
    if _excerpt is None:
        require_inside(numbers, len(rows))
        np.take(rows, numbers, axis=0, out=out, mode="wrap")
        return out
    row_bytes = rows.nbytes // len(rows) if len(rows) else 0
    used = max(1, min(threads, _MAX_THREADS, out.nbytes // _THREAD_BYTES))
    wrong = _excerpt.excerpt(
        out.ctypes.data, rows.ctypes.data, numbers.ctypes.data, len(numbers), len(rows), row_bytes, used
    )
    if wrong >= 0:
        _refuse(numbers, wrong, len(rows))
    return out


def copy_to(target: Array, source: Array) -> None:
    """Copy as `numpy.copyto`; from 16 MB on past the caches, which saves a third of the traffic."""
    alike = (target.shape, target.dtype) == (source.shape, source.dtype) and not source.dtype.hasobject
    plain = alike and target.flags.c_contiguous and source.flags.c_contiguous
    if _excerpt is None or source.nbytes < _STREAM_BYTES or not plain:
        np.copyto(target, source)
    else:
        _excerpt.excerpt(target.ctypes.data, source.ctypes.data, _FIRST.ctypes.data, 1, 1, source.nbytes, 1)


def row_numbers(indices: Any, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return indices as contiguous int64; a slice or a mask as the numbers that it selects."""
    if isinstance(indices, slice):
        return np.arange(*indices.indices(length), dtype=np.int64)
    numbers = np.asarray(indices)
    if numbers.dtype == bool and numbers.ndim == 1:
        if len(numbers) != length:
            raise RowIndexError(
                f"got a mask of {len(numbers)} items for {length} rows: it must have one item for each row"
            )
        return np.flatnonzero(numbers).astype(np.int64, copy=False)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
        raise ConfigurationError(
            f"got indices of {_kind(numbers)}: pass a list of row numbers, a slice, or a mask with an item for each row"
        )
    # As int64 a large uint64 would be negative.
    if numbers.dtype == np.uint64 and numbers.size and numbers.max() >= length:
        _refuse(numbers, int(np.argmax(numbers)), length)
    return np.ascontiguousarray(numbers, np.int64)


def part_of(indices: Any, length: int, rank: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the part of ``rank``, of ``size`` contiguous ones; raise `RowIndexError` if one is
    outside.
    """
    numbers = row_numbers(indices, length)
    start, stop = shard_bounds(len(numbers), rank, size)
    require_inside(numbers[start:stop], length, first=start)
    return numbers[start:stop]


def require_inside(numbers: Array, length: int, first: int = 0) -> None:
    """Raise `RowIndexError` if a number is outside; ``first`` is the first one's position."""
    outside = (numbers < -length) | (numbers >= length)
    if outside.any():
        _refuse(numbers, int(np.argmax(outside)), length, first)


def _refuse(numbers: Array, position: int, length: int, first: int = 0) -> None:
    raise RowIndexError(
        f"got index {numbers[position]} at position {first + position} of the list: with {length} "
        f"rows, indices are {-length} to {length - 1}"
    )


def _kind(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"shape {array.shape} and dtype {array.dtype}"
    return type(array).__name__
