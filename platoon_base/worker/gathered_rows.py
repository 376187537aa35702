"""Rows of all workers, for metrics over a whole set."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.worker.handle import Worker

Array = np.ndarray[Any, Any]


def gather_rows(value: Array, worker: Worker, may_lose: bool) -> Array:
    """Return the rows of all workers by rank; with ``may_lose`` of those that still take part."""
    sizes = worker.gather([worker.global_rank, *map(int, value.shape)], name="rows of metrics")
    ranks, most = [size[0] for size in sizes], max(size[1] for size in sizes)
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
        stacked = worker.all_gather(padded)
    return np.concatenate([stacked[rank][: size[1]] for rank, size in zip(ranks, sizes)])
