"""Names, fingerprints and checksums that show whether workers have the same data."""

from __future__ import annotations

import hashlib
import numbers
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.sharding import START, Position

_WHOLE_BYTES = 1 << 16
_ROWS = 64


def checksum(array: Any, before: int = 0) -> int:
    """Return the CRC-32 of an array without objects; ``before`` is that of earlier data."""
    values = np.ascontiguousarray(array)
    return zlib.crc32(values.reshape(-1).view(np.uint8).data, before) if values.nbytes else before


def fingerprint(*data: Any) -> str:
    """Return a hash of the shapes, the dtypes and a sample of the rows of each argument.

    It is 16 hexadecimal digits, the same in every process. At most 64 rows of each array are read,
    so any size costs milliseconds: data that differ in single rows may have the same fingerprint,
    but two random splits or shuffles do not. Arrays of torch, TensorFlow, h5py, scipy.sparse and
    pandas are read too; for other objects only the class counts.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in data:
        _add(digest, part, _ROWS)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, data: Any, rows: int) -> None:
    if isinstance(data, Mapping):
        _mark(digest, "mapping", len(data))
        for key in sorted(data, key=repr):
            _add(digest, key, rows)
            _add(digest, data[key], rows)
    elif data is None or isinstance(data, (str, bytes, numbers.Number, np.generic)):
        _mark(digest, type(data).__name__, repr(data))
    elif hasattr(data, "shape") and hasattr(data, "__getitem__"):
        _add_array(digest, data, rows)
    elif isinstance(data, Sequence):
        _mark(digest, "sequence", len(data))
        for index in _sample(len(data), rows):
            _add(digest, data[index], rows)
    else:
        _mark(digest, type(data).__module__, type(data).__qualname__)


def _add_array(digest: hashlib.blake2b, array: Any, rows: int) -> None:
    if isinstance(array, np.ndarray) or not len(array.shape):
        # A row of np.matrix would be a matrix again.
        array = np.asarray(array)
    shape = tuple(int(n) for n in array.shape)
    _mark(digest, "array", shape, getattr(array, "dtype", None))
    if isinstance(array, np.ndarray) and not array.dtype.hasobject and (array.nbytes <= _WHOLE_BYTES or array.ndim < 2):
        digest.update(_thinned(array, rows).tobytes())
    elif isinstance(array, np.ndarray) and not array.ndim:
        _add(digest, array.item(), rows)
    elif shape:
        # pandas selects columns by [].
        by_row = getattr(array, "iloc", array)
        for index in _sample(shape[0], rows):
            _add(digest, plain(by_row[index]), max(2, rows // 8))


def _thinned(array: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """Return a small array, or parts spread over a long vector, which may be on a disk."""
    if array.nbytes <= _WHOLE_BYTES:
        return array
    length = max(1, _WHOLE_BYTES // _ROWS // array.itemsize)
    return np.concatenate([array[start : start + length] for start in _sample(len(array) - length + 1, parts)])


def plain(row: Any) -> Any:
    """Return a row of another package's array as a NumPy array."""
    if isinstance(row, np.ndarray):
        return row
    # A matrix of scipy.sparse.
    if hasattr(row, "toarray"):
        return row.toarray()
    # A tensor of torch.
    if hasattr(row, "detach"):
        row = row.detach().cpu()
        # NumPy has no bfloat16.
        return (row.float() if str(row.dtype) == "torch.bfloat16" else row).numpy()
    if hasattr(row, "shape"):
        return np.asarray(row)
    return row


def _sample(n: int, count: int) -> list[int]:
    if n <= count:
        return list(range(n))
    return [i * (n - 1) // (count - 1) for i in range(count)]


def _mark(digest: hashlib.blake2b, *words: Any) -> None:
    digest.update(repr([str(word) for word in words]).encode())


SAME_DATA_REMEDY = (
    "Data to divide must be the same rows in the same order on all workers: otherwise some rows "
    "are used both for training and for validation, and some are not used at all. Seed random "
    "splits, shuffles and noise, for example train_test_split(x, y, random_state=0) or "
    "numpy.random.RandomState(0). Add noise that must differ to the mini-batches. To divide data "
    "that differ on purpose, or by rounding, divide their row numbers: pass numpy.arange(len(x)) "
    "instead of x"
)


class DataId(NamedTuple):
    """The name of a data set, the same on all workers, and its fingerprint."""

    name: str
    fingerprint: str


class DataSeen:
    """Numbers the data sets of each kind that a worker has divided, by their first use."""

    def __init__(self, resumed_at: Position = START) -> None:
        self._seen: dict[str, set[str]] = {}
        # Workers of a resumed job may use other data first: only equal positions are compared.
        position = f" from epoch {resumed_at.epoch}, mini-batch {resumed_at.epoch_steps} on"
        self._position = "" if resumed_at == START else position

    def register(self, data: tuple[Any, ...], kind: str) -> DataId | None:
        """Return the id of new data; None if they are known, or read differently each time."""
        mark = fingerprint(*data)
        if len(kind) > 100:
            kind = f"{kind[:80]}... {fingerprint(kind)}"
        seen = self._seen.setdefault(kind, set())
        if mark in seen or mark != fingerprint(*data):
            return None
        seen.add(mark)
        return DataId(f"data set {len(seen)} of {kind}{self._position}", mark)


def kind_of(*data: Any) -> str:
    """Describe a row of the data by dtype and shape, without the number of rows."""
    return f"rows like {', '.join(_kind(part) for part in data if part is not None)}"


def _kind(data: Any) -> str:
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(data[key])}" for key in sorted(data, key=str)) + "}"
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        return f"{getattr(data, 'dtype', type(data).__name__)}{[n if n is None else int(n) for n in data.shape[1:]]}"
    return type(data).__name__
