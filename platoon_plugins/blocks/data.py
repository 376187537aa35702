"""Fuel streams: each worker reads its shard, or the first worker reads for all."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
from collections.abc import Callable
from multiprocessing import Process
from typing import Any

from fuel.schemes import BatchSizeScheme, IterationScheme
from fuel.streams import AbstractDataStream, DataStream, ServerDataStream
from fuel.transformers import BackgroundProcess, Batch, Cache, Filter, MultiProcessing

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import require_uneven
from platoon_plugins.blocks.same_data import require_same_stream
from platoon_plugins.blocks.schemes import Shard, ShardedScheme, all_schemes
from platoon_plugins.blocks.streams import (
    BroadcastStream,
    DealtStream,
    all_streams,
    draw_by_rank,
    is_broadcast,
    is_sharded,
    maps_one_to_one,
    require_stream,
    sources_of,
)

__all__ = ["shard_stream", "with_scheme"]

log = logging.getLogger(__name__)

MODES = ("shard", "broadcast")
# Numbers of the streams that this process divides by `DealtStream`.
_numbers = itertools.count(1)


def shard_stream(
    stream: AbstractDataStream,
    *,
    mode: str = "shard",
    uneven: str = "keep",
    rank: int | None = None,
    size: int | None = None,
    seed: int | None = None,
    worker: Worker | None = None,
) -> AbstractDataStream:
    """Return this worker's part of a stream. All workers pass the same stream.

    A `ShardedScheme` replaces the stream's scheme, below all its transformers: of the batches (or
    examples) of an epoch, worker k of N reads the k-th, the (k+N)-th, and so on. All workers draw
    the same new order for each epoch. A pickled stream continues with any number of workers, also
    in the middle of an epoch. For a single worker the stream is unchanged.

    Some streams name no rows: those without a scheme, as for a `TextFile` or an `IterableDataset`,
    and those with a `ConstantScheme`. Every worker then reads all batches and keeps its part
    (`DealtStream`), and transformers that yield one batch for each that they read process only this
    part. The same holds for a stream with a `Cache` or a strict `Batch`, which drop incomplete
    batches.

    The function copies the stream; both share the data set. Call it before an epoch begins, and put
    a `MultiProcessing` around the result, since the copy of one inside starts a second process. A
    transformer with a generator (``rng``) draws different numbers on each worker. For NumPy's
    global generator, seed each worker with ``platoon_base.sharding.shard_seed(seed,
    connect().global_rank)``. A `Filter` may pass more batches on one worker than on another,
    whatever ``uneven`` is.

    Parameters
    ----------
    stream : AbstractDataStream
        A `DataStream`, or any chain of transformers above such streams.
    mode : {"shard", "broadcast"}
        "broadcast" is for a stream that only one process can read: the first worker sends each
        batch to all others.
    uneven : {"keep", "drop", "wrap"}
        With "shard": what to do if the batches cannot be divided evenly, see `ShardedScheme`.
    rank, size : int, optional
        Return shard number ``rank`` of ``size``, in a process that is not a worker, such as a data
        server.
    seed : int, optional
        With ``rank`` and ``size``: the common seed of all shards; 0 by default.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If an argument is invalid, if the stream comes from a data server or is sharded already, or
        if another worker has another scheme or data, such as a random split without a seed.

    Examples
    --------
    >>> stream = DataStream(mnist, iteration_scheme=ShuffledScheme(50000, 100))    # doctest: +SKIP
    >>> train = shard_stream(Flatten(stream))                                      # doctest: +SKIP

    One Fuel server for each of 2 shards, and the stream with which a worker reads its shard:

    >>> for r in range(2):                                                         # doctest: +SKIP
    ...     part = shard_stream(stream, rank=r, size=2)
    ...     Process(target=start_server, args=(part, 5557 + r)).start()
    >>> port = 5557 + connect().global_rank                                        # doctest: +SKIP
    >>> train = ServerDataStream(sources, False, port=port)                        # doctest: +SKIP
    """
    if mode not in MODES:
        raise ConfigurationError(f"got mode={mode!r}: it must be one of {', '.join(MODES)}")
    require_uneven(uneven)
    require_stream(stream)
    given = _given_shard(rank, size, seed, mode)
    reader = given or (connect() if worker is None else worker)
    if reader.global_size == 1:
        return stream
    if is_sharded(stream) or is_broadcast(stream):
        raise ConfigurationError("got a stream of shard_stream, or one with a ShardedScheme: shard only once")
    for source in sources_of(stream):
        _refuse_server(source)
    if mode == "broadcast":
        return BroadcastStream(stream, worker=reader)
    # A Shard belongs to no job, so there is nothing to compare.
    if isinstance(reader, Worker):
        require_same_stream(stream, reader, "shard_stream")
    links = list(all_streams(stream))
    if any(map(_leaves_rest_out, links)) or not all(map(_names_rows, (s.iteration_scheme for s in sources_of(stream)))):
        name = f"stream {next(_numbers)} of shard_stream" if isinstance(reader, Worker) else ""
        return _dealt(stream, functools.partial(DealtStream, uneven=uneven, worker=reader, name=name), reader)
    if any(isinstance(link, Filter) for link in links) and not reader.global_rank:
        log.warning(
            "the stream has a Filter, which may pass different numbers of batches on each "
            "worker. One that keeps every second row, for example, may leave some workers "
            "without any. If so, give the scheme the rows that pass, and remove the Filter"
        )
    wrap = functools.partial(ShardedScheme, uneven=uneven, worker=reader)
    return with_scheme(stream, wrap, reader.global_rank)


def _given_shard(rank: int | None, size: int | None, seed: int | None, mode: str) -> Shard | None:
    if rank is None and size is None and seed is None:
        return None
    if rank is None or size is None or not 0 <= rank < size or (seed or 0) < 0:
        raise ConfigurationError(
            f"got rank={rank}, size={size}, seed={seed}: pass both rank and size, a rank of 0 .. "
            "size - 1, and a seed of 0 or more; in a worker pass none of them"
        )
    if mode != "shard":
        raise ConfigurationError(f"got mode={mode!r} with rank and size: only the workers of a job can broadcast")
    return Shard(rank, size, seed or 0)


def with_scheme(
    stream: AbstractDataStream, wrap: Callable[[IterationScheme], IterationScheme], rank: int = 0
) -> AbstractDataStream:
    """Return a shallow copy with another scheme below all transformers, seeded by ``rank``."""
    for source in sources_of(stream):
        _require_scheme(source)

    def replace(source: Any) -> None:
        source.iteration_scheme = wrap(source.iteration_scheme)

    return _copied(stream, replace, rank)


def _dealt(stream: Any, deal: Callable[[Any], DealtStream], reader: Worker | Shard) -> Any:
    """Return a copy of a stream with a `DealtStream` below its one-to-one transformers."""
    if not maps_one_to_one(stream):
        # All workers read the same batches, so generators below must not depend on the rank.
        return deal(_copied(stream, _reopen, 0))
    copied = copy.copy(stream)
    draw_by_rank(copied, reader.global_rank)
    copied.data_stream = _dealt(stream.data_stream, deal, reader)
    return copied


def _reopen(source: Any) -> None:
    # Otherwise the copy would share the file position with the original.
    if isinstance(source, DataStream):
        source.data_state = source.dataset.open()


def _copied(stream: Any, change: Callable[[Any], None], rank: int) -> Any:
    """Return a copy of a chain of streams; ``change`` changes the copies at the bottom in place."""
    copied = copy.copy(stream)
    draw_by_rank(copied, rank)
    if hasattr(stream, "data_streams"):
        copied.data_streams = [_copied(part, change, rank) for part in stream.data_streams]
    elif hasattr(stream, "data_stream"):
        copied.data_stream = _copied(stream.data_stream, change, rank)
    else:
        change(copied)
    if isinstance(stream, MultiProcessing):
        # The process of the original has started to read the whole stream.
        copied.background = BackgroundProcess(copied.data_stream, stream.background.batches._maxsize)
        copied.proc = Process(target=copied.background.main, daemon=True)
        copied.proc.start()
    return copied


def _leaves_rest_out(link: Any) -> bool:
    """Return whether a transformer drops the last rows, which dividing would multiply by N."""
    return isinstance(link, Cache) or (isinstance(link, Batch) and bool(link.strictness))


def _names_rows(scheme: Any) -> bool:
    return scheme is not None and not any(isinstance(part, BatchSizeScheme) for part in all_schemes(scheme))


def _require_scheme(source: Any) -> None:
    _refuse_server(source)
    if source.iteration_scheme is None:
        raise ConfigurationError(
            f"got a {type(source).__name__} without an iteration scheme, which returns its next "
            "rows and takes no requests for others: give it a scheme, such as "
            "SequentialScheme(rows, batch_size)"
        )


def _refuse_server(source: Any) -> None:
    if isinstance(source, ServerDataStream):
        raise ConfigurationError(
            "got a ServerDataStream, whose server gives each batch, and the end of an epoch, to "
            "only one of its clients: run one server for each worker, "
            "start_server(shard_stream(stream, rank=r, size=n), port=5557 + r), and read it with "
            "ServerDataStream(..., port=5557 + connect().global_rank), without shard_stream"
        )
