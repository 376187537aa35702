"""Iteration schemes that divide the requests of an epoch among the workers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
from fuel.schemes import BatchSizeScheme, IterationScheme

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.job import connected
from platoon_base.sharding import require_uneven


class Shard(NamedTuple):
    """A shard's number, the number of shards and their common seed, in place of a `Worker`."""

    global_rank: int
    global_size: int
    seed: int = 0


class CurrentShard:
    """The shard of this process; unpickled by another worker, it becomes that worker's shard."""

    def __init__(self, worker: Worker | Shard) -> None:
        self._shard = _shard_of(worker)
        self._unpickled = False

    def get(self) -> Shard:
        if self._unpickled:
            # A data server must not join the job, so this is not connect().
            worker = connected()
            self._shard = self._shard if worker is None else _shard_of(worker)
            self._unpickled = False
        return self._shard

    def __getstate__(self) -> Shard:
        return self._shard

    def __setstate__(self, shard: Shard) -> None:
        self._shard, self._unpickled = shard, True


def _shard_of(worker: Worker | Shard) -> Shard:
    return Shard(worker.global_rank, worker.global_size, worker.seed)


class ShardedScheme(IterationScheme):
    """Divide the requests of another scheme among the workers.

    Of the requests r_0, r_1, ... of an epoch, worker k of N gets r_k, r_{k+N}, r_{k+2N}, ...: the N
    batches of one round are the batch of a single process with N times as many rows.

    All workers divide the same order. A scheme with an ``rng``, such as `ShuffledScheme`, is copied
    for each epoch, with a generator seeded by the job's seed and the epoch. A scheme without
    ``rng`` must make the same requests in the same order on every worker. Each
    `get_request_iterator` counts as an epoch, so call it equally often on every worker.

    Parameters
    ----------
    scheme : IterationScheme
        Its requests must name rows, not sizes of batches as those of `ConstantScheme`.
    uneven : {"keep", "drop", "wrap"}
        If N does not divide the number of requests, some workers have one more ("keep"), or the
        last, incomplete round is skipped ("drop") or completed with the first requests of the epoch
        ("wrap"). Synchronous training needs equal numbers of steps: "drop" or "wrap".
    worker : Worker or Shard, default ``connect()``
        Only its rank, number of workers and seed are stored. Unpickled in a process that has joined
        a job, the scheme uses the shard of that worker.

    Attributes
    ----------
    epoch : int
        Number of epochs that have begun.
    num_examples : int
        This worker's steps in an epoch times ``batch_size``, for progress bars: a smaller last
        batch counts in full. Missing if ``scheme`` has no number of rows.

    Raises
    ------
    ConfigurationError
        If a scheme cannot be divided, or is a `ShardedScheme`; at the first request of an epoch if
        "drop" leaves none.

    Examples
    --------
    >>> scheme = ShardedScheme(ShuffledScheme(50000, 100))                         # doctest: +SKIP
    >>> DataStream(data, iteration_scheme=scheme)                                  # doctest: +SKIP
    """

    def __init__(self, scheme: IterationScheme, *, uneven: str = "keep", worker: Worker | Shard | None = None) -> None:
        require_uneven(uneven)
        for part in all_schemes(scheme):
            _require_rows(part)
        self.scheme = scheme
        self.uneven = uneven
        self.epoch = 0
        self._current = CurrentShard(connect() if worker is None else worker)

    @property
    def requests_examples(self) -> bool:
        return self.scheme.requests_examples

    @property
    def batch_size(self) -> int:
        return 1 if self.requests_examples else self.scheme.batch_size

    @property
    def num_examples(self) -> int:
        rows = len(self.scheme.indices) if hasattr(self.scheme, "indices") else self.scheme.num_examples
        requests, shard = -(-rows // self.batch_size), self._current.get()
        if self.uneven == "drop":
            requests -= requests % shard.global_size
        first = 0 if self.uneven == "wrap" else shard.global_rank
        return len(range(first, requests, shard.global_size)) * self.batch_size

    def get_request_iterator(self) -> ShardedRequests:
        """Start the next epoch."""
        requests = ShardedRequests(self.scheme, [self._current.get().seed, self.epoch], self.uneven, self._current)
        self.epoch += 1
        return requests


class ShardedRequests(Iterator[Any]):
    """The requests of one worker in one epoch, which can be pickled in the middle of the epoch."""

    def __init__(self, scheme: IterationScheme, seed: list[int], uneven: str, current: CurrentShard) -> None:
        self._scheme = scheme
        self._seed = seed
        self._uneven = uneven
        self._current = current
        self._consumed = 0
        self._upcoming: Iterator[Any] | None = None

    def __next__(self) -> Any:
        rank, size, _ = self._current.get()
        if self._upcoming is None:
            self._upcoming = islice(self._from_the_first(), self._consumed, None)
        together = list(islice(self._upcoming, size))
        dealt_before = self._consumed
        self._consumed += len(together)
        if len(together) == size or (rank < len(together) and self._uneven != "drop"):
            return together[rank]
        if together and self._uneven == "wrap":
            return next(islice(cycle(self._from_the_first()), rank - len(together), None))
        if together and self._uneven == "drop" and not dealt_before:
            raise ConfigurationError(
                f"got {len(together)} {self._unit} in an epoch for {size} workers, of which "
                'uneven="drop" leaves none: make batches smaller, use fewer workers, or '
                'uneven="wrap"'
            )
        raise StopIteration

    @property
    def _unit(self) -> str:
        return "examples" if self._scheme.requests_examples else "batches"

    def _from_the_first(self) -> Iterator[Any]:
        return iter(same_epoch(self._scheme, self._seed).get_request_iterator())

    # The pickle counts the requests of all workers, which are taken to be at the same step. The
    # workers that unpickle it divide the remaining requests among themselves, in the same order.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_upcoming": None}


def same_epoch(scheme: IterationScheme, seed: Sequence[int]) -> IterationScheme:
    """Return a copy of a scheme that makes the same requests for the same seed, in one epoch."""
    # A second epoch would draw the next numbers of the new generators. A scheme without `rng` is
    # taken to be deterministic.
    return _seeded(scheme, seed, itertools.count())


def _seeded(scheme: IterationScheme, seed: Sequence[int], numbers: Iterator[int]) -> IterationScheme:
    copied = copy.copy(scheme)
    if hasattr(scheme, "rng"):
        sequence = np.random.SeedSequence([*seed, next(numbers)])
        is_new = isinstance(scheme.rng, np.random.Generator)
        copied.rng = np.random.default_rng(sequence) if is_new else np.random.RandomState(sequence.generate_state(4))
    for name, value in _inner(scheme):
        if isinstance(value, IterationScheme):
            setattr(copied, name, _seeded(value, seed, numbers))
        else:
            setattr(copied, name, type(value)(_seeded(part, seed, numbers) for part in value))
    return copied


def _inner(scheme: IterationScheme) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(scheme).items()):
        parts = value if isinstance(value, (list, tuple)) else [value]
        if parts and all(isinstance(part, IterationScheme) for part in parts):
            yield name, value


def all_schemes(scheme: Any) -> Iterator[Any]:
    yield scheme
    if isinstance(scheme, IterationScheme):
        for _, value in _inner(scheme):
            for part in value if isinstance(value, (list, tuple)) else [value]:
                yield from all_schemes(part)


def _require_rows(scheme: Any) -> None:
    if not isinstance(scheme, IterationScheme):
        raise ConfigurationError(
            f"got {type(scheme).__name__} as the scheme: pass one of fuel.schemes, such as ShuffledScheme(rows, "
            "batch_size)"
        )
    if isinstance(scheme, ShardedScheme):
        raise ConfigurationError("got a ShardedScheme, whose requests are already for one worker: shard only once")
    if isinstance(scheme, BatchSizeScheme):
        raise ConfigurationError(
            f"got {type(scheme).__name__}, whose requests are batch sizes and cannot be divided "
            "by rows: use SequentialScheme or ShuffledScheme if the data set takes row numbers, "
            "or shard_stream(stream), which deals whole batches, if it returns its next rows"
        )
