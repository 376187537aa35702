"""The rows, batches and seeds of each worker: all workers compute them alike, without messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError

UNEVEN = ("keep", "drop", "wrap")


class Position(NamedTuple):
    """A worker's progress, from which it continues after a restart."""

    epoch: int = 0
    epoch_steps: int = 0
    steps: int = 0

    def done_in(self, epoch: int) -> int:
        """Return the number of mini-batches of an epoch that are done; 0 for other epochs."""
        return self.epoch_steps if epoch == self.epoch else 0


START = Position()


def _check(rank: int, size: int) -> None:
    if size < 1 or not 0 <= rank < size:
        raise ConfigurationError(f"got rank {rank} of {size} workers: rank must be in 0 .. size - 1")


def require_uneven(uneven: Any) -> None:
    if uneven not in UNEVEN:
        raise ConfigurationError(f"got uneven={uneven!r}: it must be one of {', '.join(UNEVEN)}")


def shard_bounds(n: int, rank: int, size: int) -> tuple[int, int]:
    """Return start and stop of the contiguous shard of ``rank``; sizes differ by at most one."""
    _check(rank, size)
    return n * rank // size, n * (rank + 1) // size


def epoch_indices(
    n: int,
    rank: int,
    size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    uneven: str = "keep",
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the row numbers of ``rank`` in ``epoch``: every ``size``-th of the epoch's order.

    ::

        rows := order[rank], order[rank + size], order[rank + 2 size], ...

    All workers have the same order: 0 .. n - 1, or with ``shuffle`` one permutation drawn from
    ``(seed, epoch)``. The k-th mini-batches of all workers together are the k-th of one process
    with mini-batches ``size`` times as large.

    If ``size`` does not divide ``n``, ``uneven="keep"`` makes shards that differ by one row, "drop"
    skips the last ``n % size`` rows, and raises if none are left, and "wrap" repeats the first
    rows.
    """
    _check(rank, size)
    if seed < 0 or epoch < 0:
        raise ConfigurationError(f"got seed={seed}, epoch={epoch}: both must be 0 or more")
    if n < 0:
        raise ConfigurationError(f"got n={n}: it must be 0 or more")
    require_uneven(uneven)
    order = np.arange(n, dtype=np.int64)
    if shuffle:
        np.random.default_rng([seed, epoch]).shuffle(order)
    if uneven == "drop":
        if 0 < n < size:
            raise ConfigurationError(
                f'got {n} rows for {size} workers, of which uneven="drop" would use none: pass '
                'uneven="wrap", which uses some twice, or launch fewer workers'
            )
        order = order[: n - n % size]
    elif uneven == "wrap" and n:
        order = np.resize(order, -(-n // size) * size)
    return order[rank::size]


def shard_seed(seed: int, rank: int) -> int:
    """Return a seed for the noise of one worker (dropout, augmentation), different on each rank."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def take(data: Any, indices: np.ndarray[Any, Any]) -> Any:
    # pandas selects columns by [].
    if hasattr(data, "iloc"):
        return data.iloc[indices]
    if hasattr(data, "shape"):
        return data[indices]
    if isinstance(data, Sequence):
        return [data[i] for i in indices]
    if isinstance(data, Iterator):
        raise ConfigurationError(
            "got an iterator, which can be read only once and has no length: pass an array, a list or a number of rows"
        )
    raise ConfigurationError(f"got {type(data).__name__}: pass an array, a list or a number of rows")


def shard(data: Any, rank: int, size: int, *, shuffle: bool, seed: int, epoch: int, uneven: str) -> Any:
    """Return the part of ``rank``, or row numbers if ``data`` is a number of rows."""
    if isinstance(data, (int, np.integer)):
        n = int(data)
    elif hasattr(data, "__len__"):
        n = len(data)
    elif isinstance(data, Iterable) and not shuffle and uneven == "keep":
        return islice(data, rank, None, size)
    else:
        raise ConfigurationError(
            f"got {type(data).__name__}, which has no length, so it cannot be shuffled or divided "
            "evenly: pass an array, a list, a number of rows, or an iterable without further "
            "arguments"
        )
    rows = epoch_indices(n, rank, size, shuffle=shuffle, seed=seed, epoch=epoch, uneven=uneven)
    return rows if isinstance(data, (int, np.integer)) else take(data, rows)


class Cut(NamedTuple):
    """How a kind of batches is joined and divided: the rows of an index list, or of tensors."""

    join: Callable[[Sequence[Any]], Any]
    count: Callable[[Any], int]
    take: Callable[[Any, int, int], Any]


def deal(
    batches: Iterator[Any], rank: int, size: int, cut: Cut | None, drops: bool = False, least: int = 1
) -> Iterator[Any]:
    """Yield the rank's batch of each round of ``size``; all ranks get equally many batches.

    The last round may be incomplete. Then all its rows are divided: rank i gets the i-th of
    ``size`` consecutive parts, which differ by one row at most. If they would have fewer than
    ``least`` rows, these rows are divided together with the round before. ``drops``, or no ``cut``,
    leaves an incomplete round out.
    """
    held: list[Any] = []
    while len(taken := list(itertools.islice(batches, size))) == size:
        if held:
            yield held[rank]
        held = taken
    left = None if drops or not taken or cut is None else cut.join(taken)
    if cut is None or left is None or not cut.count(left):
        parts = [held]
    elif cut.count(left) >= size * least or (not held and cut.count(left) >= size):
        parts = [held, _parts(left, size, cut)]
    else:
        joined = cut.join([*held, left])
        parts = [_parts(joined, size, cut)] if cut.count(joined) >= size else []
    if not held and not taken:
        raise ConfigurationError(
            "got a loader without batches: a generator can be read only once, so pass an object "
            "whose every pass yields all batches"
        )
    if not any(parts):
        raise ConfigurationError(
            f"got a loader with too few rows for {size} workers, so some would have no batch: "
            "launch fewer workers, or use smaller batches"
        )
    yield from (part[rank] for part in parts if part)


def _parts(rows: Any, size: int, cut: Cut) -> list[Any]:
    count = cut.count(rows)
    return [cut.take(rows, *shard_bounds(count, rank, size)) for rank in range(size)]


INDICES = Cut(lambda lists: [row for each in lists for row in each], len, lambda rows, start, stop: rows[start:stop])
