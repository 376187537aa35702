"""Values of all workers, which they gather, combine or compare."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.collectives.flat import FlatBuffers
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import checksum
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker


class BatchSizes:
    """The numbers of rows of this worker's batches in one pass over a loader."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []  # Rows of a batch, and how many such batches follow each other.

    def add(self, rows: int) -> None:
        if not self.runs or self.runs[-1][0] != rows:
            self.runs.append([rows, 0])
        self.runs[-1][1] += 1


def gather_rows(value: Array, worker: Worker, may_lose: bool, batches: BatchSizes | None = None) -> Array:
    """Return the rows of all workers by rank; with ``may_lose`` of those that still take part.

    If the values are those of all these ``batches``, the rows are in the order of the data.
    """
    runs = [] if batches is None or sum(rows * count for rows, count in batches.runs) != len(value) else batches.runs
    found = worker.gather([worker.global_rank, runs, *map(int, value.shape)], name="rows of all workers")
    ranks, sizes = [size[0] for size in found], [[size[0], *size[2:]] for size in found]
    most = max(size[1] for size in sizes)
    if any(size[2:] != sizes[0][2:] for size in sizes):
        raise ConfigurationError(
            f"got shapes {[tuple(size[1:]) for size in sizes]}: only the numbers of rows may differ"
        )
    padded = np.zeros((most, *value.shape[1:]), value.dtype)
    padded[: len(value)] = value
    if may_lose:
        exact = padded.view(np.uint32) if value.dtype.itemsize == 8 else padded  # float64 is not for int64.
        mine = np.zeros((worker.global_size, *exact.shape), np.float64)
        mine[worker.global_rank] = exact
        stacked = worker.advanced.sum_arrays("metrics", [mine]).arrays[0].astype(exact.dtype).view(value.dtype)
    else:
        # As bytes, which may be of any dtype.
        stacked = (
            worker.all_gather(padded.reshape(-1).view(np.uint8))
            .view(value.dtype)
            .reshape(worker.global_size, *padded.shape)
        )
    own = [stacked[rank][: size[1]] for rank, size in zip(ranks, sizes)]
    if not all(size[1] for size in found):
        return np.concatenate(own)
    dealt = [np.repeat(*np.array(size[1]).T) for size in found]
    parts = [np.split(rows, np.cumsum(each)[:-1]) for rows, each in zip(own, dealt)]
    return np.concatenate([part for turn in itertools.zip_longest(*parts) for part in turn if part is not None])


class FlatAllReduce:
    """All-reduce of lists of arrays, in place; use one object for each place of the program.

    It keeps a flat buffer and copies arrays into it, except large ones on the host.
    """

    def __init__(self, worker: Worker, timeout_s: float = DEFAULT_TIMEOUT_S, compress: bool = False) -> None:
        self._all_reduce = functools.partial(worker.all_reduce, timeout_s=timeout_s)
        self._buffers = FlatBuffers(compress=compress and worker.advanced.compresses_gradients)

    def __call__(self, arrays: Sequence[Any], op: str = "sum") -> None:
        """Combine C-contiguous arrays, the same number, shapes and dtypes on every worker."""
        for i, array in enumerate(arrays):
            if not hasattr(array, "flags") or not array.flags.c_contiguous or np.isscalar(array):
                raise ConfigurationError(
                    f"got {type(array).__name__} number {i}, which is not a C-contiguous array, "
                    "and the result is written into it: pass numpy.ascontiguousarray(...) and "
                    "keep that array"
                )
        self._buffers.combine(self._all_reduce, op, arrays, arrays)


log = logging.getLogger(__name__)

# Rounding on different devices causes relative differences up to this; diverged models differ more.
_ROUNDING = 1e-3
_SAMPLE = 256


def require_same_values(
    worker: Worker,
    name: str,
    values: Sequence[tuple[str, Any]],
    remedy: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Raise `ConfigurationError` on every worker if values that must be equal differ.

    A collective call of all participants. If checksums differ, up to 256 values of each array are
    compared: differences up to a thousandth of the array's largest value are rounding.
    """
    rank, mark = worker.global_rank, 0
    arrays = [np.ascontiguousarray(value) for _, value in values]
    for array in arrays:
        mark = checksum(array, mark)
    told = worker.gather([rank, mark], name=f"{name}, checksums", timeout_s=timeout_s)
    if len({other for _, other in told}) <= 1:
        return
    ranks = [other for other, _ in told]
    samples = [_sample(array) for array in arrays]
    mine = rank == ranks[0]
    summed = worker.advanced.sum_arrays(
        f"{name}, values", [s if mine else np.zeros_like(s) for s in samples], timeout_s=timeout_s
    )
    if summed.ranks != ranks:
        return  # A worker has left meanwhile; the next comparison excludes it.
    first = summed.arrays
    found = [_farthest(own, other) for own, other in zip(samples, first)]
    index = max(range(len(found)), key=lambda i: found[i][0])
    distance, at = found[index]
    far = [rank, index, float(samples[index][at]), float(first[index][at])] if distance > _ROUNDING else None
    apart = [other for other in worker.gather(far, name=f"{name}, differences", timeout_s=timeout_s) if other]
    if apart:
        raise ConfigurationError(_message(name, apart, [text for text, _ in values], ranks[0], remedy))
    log.debug("rank %d: %s: equal except for rounding", rank, name)


def _sample(array: Array) -> Array:
    flat = array.ravel()
    return flat[:: max(1, -(-flat.size // _SAMPLE))].astype(np.float64)


def _farthest(own: Array, first: Array) -> tuple[float, int]:
    """Return the largest relative difference and its index; a NaN in one array is infinite."""
    if not own.size:
        return 0.0, 0
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(own - first) / np.max(np.abs(first[np.isfinite(first)]), initial=0)
    apart = np.where((own == first) | (np.isnan(own) & np.isnan(first)), 0.0, np.nan_to_num(apart, nan=np.inf))
    at = int(np.argmax(apart))
    return float(apart[at]), at


def _message(
    name: str, apart: Sequence[tuple[int, int, float, float]], names: Sequence[str], first: int, remedy: str
) -> str:
    parts = [
        f"worker {rank} has {own:.6g} in {names[index]}, and worker {first} {other:.6g}"
        for rank, index, own, other in apart
    ]
    return f"{name}: some workers got other values than the others: {'; '.join(parts)}; {remedy}"
