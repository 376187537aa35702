"""Exchange of the workers' accumulators for monitoring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError

__all__ = ["Array", "Share", "gather_shares"]

Array = np.ndarray[Any, Any]


class Share(NamedTuple):
    """One worker's number of batches, real accumulators, and quantity values for each batch."""

    batches: int
    accumulators: list[Array]
    records: list[list[Array]]


def gather_shares(
    worker: Worker, name: str, share: Share, ranks: Sequence[int], *, timeout_s: float
) -> tuple[list[Share], list[int]]:
    """Gather the shares of ``ranks``, or no shares if one is lost, and the ranks that took part."""
    # A collective call. Values travel as float64, so integers beyond 2^53 are rounded.
    packed = _pack(share)
    # The lengths may differ. Each worker adds its values at its own position of a vector of zeros.
    told = worker.gather([worker.global_rank, len(packed)], name=f"{name}, lengths", timeout_s=timeout_s)
    lengths = {rank: length for rank, length in told}
    if list(lengths) != list(ranks):
        return [], list(lengths)
    ends = np.cumsum(list(lengths.values()))
    end = ends[list(ranks).index(worker.global_rank)]
    everything = np.zeros(ends[-1])
    everything[end - len(packed) : end] = packed
    summed = worker.advanced.sum_arrays(name, [everything], timeout_s=timeout_s)
    if summed.ranks != list(ranks):
        return [], summed.ranks
    return [_unpack(row) for row in np.split(summed.arrays[0], ends[:-1])], summed.ranks


def _pack(share: Share) -> Array:
    """Pack a share into one vector: four counts, ndim and shape of each array, and all values."""
    arrays = [np.asarray(array) for array in [*share.accumulators, *(v for values in share.records for v in values)]]
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"got a value of dtype {array.dtype}: workers combine only real numbers; monitor "
                "its real and imaginary parts, or its absolute value"
            )
    head = [share.batches, len(share.accumulators), len(share.records), len(arrays)]
    head += [number for array in arrays for number in (array.ndim, *array.shape)]
    return np.concatenate([np.array(head, np.float64), *(array.ravel().astype(np.float64) for array in arrays)])


def _unpack(row: Array) -> Share:
    batches, accumulators, records, count = row[:4].astype(int).tolist()
    at, shapes = 4, []
    for _ in range(count):
        ndim = int(row[at])
        shapes.append(tuple(int(n) for n in row[at + 1 : at + 1 + ndim]))
        at += 1 + ndim
    arrays = []
    for shape in shapes:
        size = math.prod(shape)
        arrays.append(row[at : at + size].reshape(shape))
        at += size
    values = arrays[accumulators:]
    each = len(values) // records if records else 0
    return Share(batches, arrays[:accumulators], [values[i * each : (i + 1) * each] for i in range(records)])
