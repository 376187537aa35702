"""A worker's batches of a loader: equally many batches on all workers, each row once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from platoon_base.errors import ConfigurationError
from platoon_base.sharding import shard_bounds


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
