"""Iteration schemes that know their shard: of all requests of an epoch, those of one worker."""

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
from platoon_base.sharding import UNEVEN

__all__ = ["Place", "ShardedRequests", "ShardedScheme", "all_schemes", "require_uneven", "same_epoch"]


class Place(NamedTuple):
    """Which of how many shards, for a process that is no worker itself.

    Attributes
    ----------
    global_rank, global_size : int
        As of a `Worker`.
    seed : int
        Common to all shards.
    """

    global_rank: int
    global_size: int
    seed: int = 0


class _Seat:
    """Where this process is in the job: plain numbers, looked up anew in the process that unpickles them."""

    def __init__(self, worker: Worker | Place) -> None:
        self._place = _place(worker)
        self._moved = False

    @property
    def place(self) -> Place:
        """The place; after unpickling that of the worker this process is, or the old one in a process that is none."""
        if self._moved:
            worker = connected()  # a data server must not join
            self._place = self._place if worker is None else _place(worker)
            self._moved = False
        return self._place

    def __getstate__(self) -> Place:
        return self._place

    def __setstate__(self, place: Place) -> None:
        self._place, self._moved = place, True


def _place(worker: Worker | Place) -> Place:
    return Place(worker.global_rank, worker.global_size, worker.seed)


class ShardedScheme(IterationScheme):
    """Give each worker its requests of those that another scheme makes.

    Of the requests r_0, r_1, ... of an epoch, batches or examples, worker k of N gets r_k, r_{k+N}, r_{k+2N}, ...: the
    N batches of one round together are the batch of one process that takes N times as many rows.

    All workers deal out the same order. A scheme that has an ``rng``, such as `ShuffledScheme`, or contains schemes
    that do, is copied for each epoch, and the copy's numbers are drawn from the job's seed and the number of the epoch,
    whatever generator it was given; the scheme itself stays as it is. A scheme without ``rng`` must make the same
    requests on every worker, in the same order. Epochs are counted by calls of `get_request_iterator`: begin as many of
    them on every worker.

    Parameters
    ----------
    scheme : IterationScheme
        Of requests that name rows. Sizes of batches (`ConstantScheme`) do not tell which rows are whose.
    uneven : {"keep", "drop", "wrap"}
        If N does not divide the number of requests: some workers have one more; the last, incomplete round is left out;
        or it is filled up with the first requests of the epoch. Synchronous training needs as many steps on every
        worker: "drop" or "wrap".
    worker : Worker or Place, optional
        The default is ``connect()``. Only its rank, the number of workers and the seed are kept. Unpickled in a process
        that has joined a job, the scheme takes that worker's place; in any other it keeps its own.

    Attributes
    ----------
    epoch : int
        How many epochs have begun.
    requests_examples : bool
        As of ``scheme``.
    batch_size : int
        Rows in a request; missing where ``scheme`` has none.
    num_examples : int
        This worker's steps in an epoch times ``batch_size``, what a progress bar divides by it: a last, smaller batch
        counts in full. Missing where ``scheme`` does not tell its rows.

    Raises
    ------
    ConfigurationError
        If a scheme cannot be dealt out, or was already. At the first request of an epoch, if "drop" leaves none.

    Examples
    --------
    >>> DataStream(data, iteration_scheme=ShardedScheme(ShuffledScheme(50000, 100)))            # doctest: +SKIP
    """

    def __init__(self, scheme: IterationScheme, *, uneven: str = "keep", worker: Worker | Place | None = None) -> None:
        require_uneven(uneven)
        for part in all_schemes(scheme):
            _require_rows(part)
        self.scheme = scheme
        self.uneven = uneven
        self.epoch = 0
        self._seat = _Seat(connect() if worker is None else worker)

    @property
    def requests_examples(self) -> bool:
        return self.scheme.requests_examples

    @property
    def batch_size(self) -> int:
        return 1 if self.requests_examples else self.scheme.batch_size

    @property
    def num_examples(self) -> int:
        rows = len(self.scheme.indices) if hasattr(self.scheme, "indices") else self.scheme.num_examples
        requests, place = -(-rows // self.batch_size), self._seat.place
        if self.uneven == "drop":
            requests -= requests % place.global_size
        first = 0 if self.uneven == "wrap" else place.global_rank
        return len(range(first, requests, place.global_size)) * self.batch_size

    def get_request_iterator(self) -> ShardedRequests:
        """Begin the next epoch."""
        requests = ShardedRequests(self.scheme, [self._seat.place.seed, self.epoch], self.uneven, self._seat)
        self.epoch += 1
        return requests


class ShardedRequests(Iterator[Any]):
    """The requests of one worker in one epoch; pickled amid the epoch, they go on where all workers had come.

    What is pickled is how many requests all workers together have had, taking them to be in step. Those that unpickle
    it deal out the others, in the same order, among however many they are then.

    Parameters
    ----------
    scheme : IterationScheme
        That makes the requests of all workers.
    seed : list of int
        Of the order of this epoch.
    uneven : {"keep", "drop", "wrap"}
    seat : object with an attribute ``place``
        Tells rank and size.
    """

    def __init__(self, scheme: IterationScheme, seed: list[int], uneven: str, seat: _Seat) -> None:
        self._scheme = scheme
        self._seed = seed
        self._uneven = uneven
        self._seat = seat
        self._consumed = 0
        self._upcoming: Iterator[Any] | None = None

    def __next__(self) -> Any:
        rank, size, _ = self._seat.place
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
                f'got {len(together)} {self._unit} in an epoch for {size} workers: uneven="drop" leaves nothing of '
                'them; make batches smaller, use fewer workers, or uneven="wrap"'
            )
        raise StopIteration

    @property
    def _unit(self) -> str:
        return "examples" if self._scheme.requests_examples else "batches"

    def _from_the_first(self) -> Iterator[Any]:
        return iter(same_epoch(self._scheme, self._seed).get_request_iterator())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_upcoming": None}


def same_epoch(scheme: IterationScheme, seed: Sequence[int]) -> IterationScheme:
    """Return a copy of a scheme that makes the same requests wherever it is given the same seed.

    Each scheme with an ``rng``, be it this one or one within it, gets a generator seeded by ``seed`` and its number
    among them. The scheme given stays as it is; one without ``rng`` is taken to be deterministic.

    Parameters
    ----------
    scheme : IterationScheme
    seed : sequence of int
        Such as the job's seed and the number of the epoch; none negative.

    Returns
    -------
    IterationScheme
        Good for one epoch: a second one would go on with the numbers behind those of the first.
    """
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
    """Yield the attributes that are schemes, or lists of them."""
    for name, value in list(vars(scheme).items()):
        parts = value if isinstance(value, (list, tuple)) else [value]
        if parts and all(isinstance(part, IterationScheme) for part in parts):
            yield name, value


def all_schemes(scheme: Any) -> Iterator[Any]:
    """Yield a scheme and all those within it."""
    yield scheme
    if isinstance(scheme, IterationScheme):
        for _, value in _inner(scheme):
            for part in value if isinstance(value, (list, tuple)) else [value]:
                yield from all_schemes(part)


def require_uneven(uneven: str) -> None:
    """Raise `ConfigurationError` unless ``uneven`` is one of the known words."""
    if uneven not in UNEVEN:
        raise ConfigurationError(f"got uneven={uneven!r}: it must be one of {', '.join(UNEVEN)}")


def _require_rows(scheme: Any) -> None:
    if not isinstance(scheme, IterationScheme):
        raise ConfigurationError(
            f"got {type(scheme).__name__} as the scheme: pass one of fuel.schemes, such as ShuffledScheme(rows, "
            "batch_size)"
        )
    if isinstance(scheme, ShardedScheme):
        raise ConfigurationError("got a ShardedScheme: its requests are one worker's already; shard once")
    if isinstance(scheme, BatchSizeScheme):
        raise ConfigurationError(
            f"got {type(scheme).__name__}: its requests are sizes of batches, which do not tell which rows are whose; "
            "use SequentialScheme or ShuffledScheme if the data set takes numbers of rows; of one that gives its next "
            'rows make a stream by shard_stream(stream, mode="broadcast"): the first worker reads it for all'
        )
