"""Shards for the classic loop over mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError

__all__ = ["iterate_minibatches", "shard"]


def shard(*arrays: Any, worker: Worker | None = None) -> Any:
    """Return this worker's rows of each array; the workers' shares differ by at most one row.

    Parameters
    ----------
    *arrays : ndarray, all of the same length
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    ndarray, or tuple of ndarray
        As many as were given.
    """
    _require_same_length(arrays)
    worker = connect() if worker is None else worker
    parts = tuple(worker.shard(array) for array in arrays)
    return parts if len(parts) > 1 else parts[0]


def iterate_minibatches(
    inputs: Any,
    targets: Any,
    batchsize: int,
    shuffle: bool = False,
    *,
    epoch: int = 0,
    uneven: str = "keep",
    skip: int = 0,
    worker: Worker | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield this worker's mini-batches of one epoch; over all workers each row comes exactly once, unless told else.

    Unlike the loop of Lasagne's examples the last, smaller batch is not left out.

    Parameters
    ----------
    inputs, targets : ndarray of the same length
    batchsize : int
        Rows in a mini-batch of one worker.
    shuffle : bool
        Draw a new order, common to all workers, from the job's seed and ``epoch``.
    epoch : int
        Pass the number of the epoch when shuffling, or every epoch has the same order.
    uneven : {"keep", "drop", "wrap"}
        What to do with rows that cannot be dealt out evenly, see `platoon_base.sharding.epoch_indices`. Synchronous
        training needs as many mini-batches on every worker: leave up to N - 1 rows out of an epoch ("drop"), or use
        some twice ("wrap").
    skip : int
        Number of mini-batches to leave out at the beginning: ``worker.resume_at.done_in(epoch)`` are done already when
        a job was resumed, or a worker started again.
    worker : Worker, optional
        The default is ``connect()``.
    """
    _require_same_length((inputs, targets))
    if batchsize < 1:
        raise ConfigurationError(f"got batchsize={batchsize!r}: it counts rows and must be at least 1")
    if skip < 0:
        raise ConfigurationError(f"got skip={skip!r}: it counts mini-batches and cannot be negative")
    worker = connect() if worker is None else worker
    rows = worker.shard(len(inputs), shuffle=shuffle, epoch=epoch, uneven=uneven)
    for start in range(batchsize * skip, len(rows), batchsize):
        batch: np.ndarray[Any, Any] = rows[start : start + batchsize]
        yield inputs[batch], targets[batch]


def _require_same_length(arrays: tuple[Any, ...]) -> None:
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise ConfigurationError(
            f"got arrays of {len(arrays)} lengths {sorted(lengths)}: inputs and targets go together row by row"
        )
