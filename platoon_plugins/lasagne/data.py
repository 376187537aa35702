"""Each worker's rows and mini-batches, for a training loop over mini-batches."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import take

log = logging.getLogger(__name__)


def shard(*arrays: Any, worker: Worker | None = None) -> Any:
    """Return this worker's rows of each array: for worker r of N, the rows r, r + N, r + 2N, ...

    It returns one array, or a tuple of as many arrays as arguments.

    Parameters
    ----------
    *arrays : ndarray, all of the same length
    worker : Worker, default ``connect()``
    """
    require_same_length(arrays)
    worker = connect() if worker is None else worker
    parts = tuple(worker.shard(array) for array in arrays)
    return parts if len(parts) > 1 else parts[0]


def iterate_minibatches(
    *arrays: Any,
    batch_size: int | None = None,
    shuffle: bool = False,
    epoch: int | None = None,
    skip: int = 0,
    inputs: Any = None,
    targets: Any = None,
    uneven: str = "keep",
    worker: Worker | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Yield this worker's mini-batches of one epoch, each a tuple of the arrays' rows.

    Worker r of N takes the rows r, r + N, r + 2N, ... of the epoch's order, and by default the
    workers together use each row exactly once. Their k-th mini-batches together are the k-th
    mini-batch of a single process whose mini-batches are N times as large. The last mini-batch may
    be smaller. (The function of this name in Lasagne's examples skips it.)

    Parameters
    ----------
    *arrays : ndarray, all of the same length
        All rows, not a shard, the same on every worker: usually inputs and targets. For a function
        that takes row numbers, pass ``numpy.arange(n)``.
    batch_size : int
        Rows in a mini-batch of one worker. ``batch_size`` and ``shuffle`` may also be passed
        positionally after the arrays.
    shuffle : bool
        Draw a permutation of all rows, common to all workers, from the job's seed and ``epoch``.
    epoch : int, optional
        Number of the epoch, which the launcher shows. The default counts the calls with
        ``shuffle``, from ``worker.resume_at.epoch``. Pass it if workers may join late or be
        restarted alone, since their own count would differ.
    skip : int
        Mini-batches to skip at the start of the epoch. After a resume or a restart pass
        ``worker.resume_at.done_in(epoch)``.
    inputs, targets : ndarray
        The first and the last of the arrays, by name.
    uneven : {"keep", "drop", "wrap"}
        What to do if N does not divide the number of rows, see
        `platoon_base.sharding.epoch_indices`. Synchronous training needs equal numbers of
        mini-batches: skip up to N - 1 rows per epoch ("drop"), or use some twice ("wrap").
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If another worker has other data, such as its own random split, or "drop" leaves no rows.
    """
    data, options = split_arguments(arrays, inputs, targets, batch_size=batch_size, shuffle=shuffle)
    count = require_same_length(data)
    rows_in_batch = require_batch_size(options["batch_size"])
    if skip < 0:
        raise ConfigurationError(f"got skip={skip!r}: it counts mini-batches and must be 0 or more")
    worker = connect() if worker is None else worker
    worker.advanced.require_same_data(*data)
    told = epoch is not None or options["shuffle"]
    if epoch is None:
        epoch = _next_epoch(worker) if options["shuffle"] else 0
    rows = worker.shard(count, shuffle=options["shuffle"], epoch=epoch, uneven=uneven)
    if told:
        _report_epoch(worker, epoch, skip, -(-len(rows) // rows_in_batch))
    return worker.loading(_batches(data, rows, rows_in_batch, skip))


def _next_epoch(worker: Worker) -> int:
    epoch = _next_epochs.get(worker, worker.resume_at.epoch)
    _next_epochs[worker] = epoch + 1
    return epoch


def _report_epoch(worker: Worker, epoch: int, skip: int, batches: int) -> None:
    """Report the epoch that begins, unless a training loop has reported it before a validation."""
    start = worker.resume_at
    begins_anew = worker not in _reported_epochs and (epoch, skip) < (start.epoch, start.epoch_steps)
    if begins_anew and (worker.late or not worker.global_rank):
        log.warning(
            "rank %d: this training was at epoch %d, mini-batch %d, and its loop starts again at "
            "epoch %d, mini-batch %d, with the restored weights: start with epoch "
            "connect().resume_at.epoch, and pass skip=connect().resume_at.done_in(epoch)",
            worker.global_rank,
            start.epoch,
            start.epoch_steps,
            epoch,
            skip,
        )
    if _reported_epochs.get(worker) != epoch:
        _reported_epochs[worker] = epoch
        worker.advanced.announce(epoch=epoch, epoch_steps=batches)


# The latest reported epoch of each worker.
_reported_epochs: weakref.WeakKeyDictionary[Worker, int] = weakref.WeakKeyDictionary()
# The epoch of each worker's next call without `epoch`.
_next_epochs: weakref.WeakKeyDictionary[Worker, int] = weakref.WeakKeyDictionary()


def _batches(data: Sequence[Any], rows: Any, batch_size: int, skip: int) -> Iterator[tuple[Any, ...]]:
    for start in range(batch_size * skip, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        yield tuple(take(array, batch) for array in data)


def split_arguments(
    positional: Sequence[Any], inputs: Any, targets: Any, **options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Separate arrays from the options after them; ``inputs`` come first and ``targets`` last."""
    arrays = tuple(itertools.takewhile(lambda argument: hasattr(argument, "__len__"), positional))
    behind = positional[len(arrays) :]
    if len(behind) > len(options):
        raise ConfigurationError(
            f"got {behind[len(options)]!r} after the arrays: pass arrays, then "
            f"{', '.join(options)}, and the rest by name"
        )
    named = tuple(array for array in (inputs, targets) if array is not None)
    arrays = (*named[: inputs is not None], *arrays, *named[inputs is not None :])
    return arrays, {**options, **dict(zip(options, behind))}


def require_batch_size(batch_size: int | None) -> int:
    if batch_size is None or batch_size < 1:
        raise ConfigurationError(f"got batch_size={batch_size!r}: it counts rows and must be at least 1")
    return batch_size


def require_same_length(arrays: Sequence[Any]) -> int:
    if not arrays:
        raise ConfigurationError("got no arrays: pass arrays with the same rows, such as inputs and targets")
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise ConfigurationError(
            f"got arrays of {len(arrays)} lengths {sorted(lengths)}: inputs and targets must have "
            "the same number of rows"
        )
    return lengths.pop()
