"""Fuel streams of which each worker reads its shard, or the first worker reads all."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from multiprocessing import Process
from typing import Any

from fuel.schemes import IterationScheme
from fuel.streams import AbstractDataStream, ServerDataStream
from fuel.transformers import BackgroundProcess, MultiProcessing

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import require_uneven
from platoon_plugins.blocks.broadcast import BroadcastStream
from platoon_plugins.blocks.same_data import require_same_stream
from platoon_plugins.blocks.schemes import Shard, ShardedScheme
from platoon_plugins.blocks.streams import draw_by_rank, is_sharded, require_stream, sources_of

__all__ = ["shard_stream", "with_scheme"]

MODES = ("shard", "broadcast")


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

    A `ShardedScheme` replaces the stream's scheme, below all its transformers: of the batches (or examples) of an
    epoch, worker k of N reads the k-th, the (k+N)-th, and so on. All workers shuffle alike, anew in each epoch. A
    pickled stream goes on where it was, also in the middle of an epoch, and with any number of workers: see
    `ShardedRequests`.

    The function copies the stream and leaves the original as it is; both share the data set. Call it before an epoch
    of the stream begins. A `MultiProcessing` in the chain gets a second process, for the copy; put it around the
    sharded stream instead. A transformer that draws from a generator of its own (``rng``) draws other numbers on each
    worker. A function that draws from NumPy's common generator draws the same on all workers if the script has seeded
    it. Seed it with ``platoon_base.sharding.shard_seed(seed, connect().global_rank)``. A `Filter` may leave one worker
    more batches than another, whatever ``uneven`` says.

    The workers compare the schemes and a few rows of the data. Different data, such as a random split without a seed,
    are an error.

    Parameters
    ----------
    stream : AbstractDataStream
        A `DataStream` with an iteration scheme, or any chain of transformers above such streams.
    mode : {"shard", "broadcast"}
        "broadcast" gives all workers the same batches, of any stream: the first worker reads them and sends them to the
        others, see `BroadcastStream`.
    uneven : {"keep", "drop", "wrap"}
        What happens to batches that cannot be dealt out evenly, see `ShardedScheme`. For mode "shard".
    rank, size : int, optional
        Return this shard of as many, in a process that is no worker, such as a data server.
    seed : int, optional
        With ``rank`` and ``size``: common to all shards; 0 by default.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    AbstractDataStream
        In a job of one, the stream itself.

    Raises
    ------
    ConfigurationError
        If an argument cannot work, if the stream makes no requests that can be dealt out or is sharded already, or if
        another worker has passed another stream.

    Examples
    --------
    >>> train = shard_stream(Flatten(DataStream(mnist, iteration_scheme=ShuffledScheme(50000, 100))))  # doctest: +SKIP

    One Fuel server for each of 2 shards, and the stream by which a worker reads its shard:

    >>> for r in range(2):                                                                      # doctest: +SKIP
    ...     Process(target=start_server, args=(shard_stream(stream, rank=r, size=2), 5557 + r)).start()
    >>> train = ServerDataStream(sources, False, port=5557 + connect().global_rank)             # doctest: +SKIP
    """
    if mode not in MODES:
        raise ConfigurationError(f"got mode={mode!r}: it must be one of {', '.join(MODES)}")
    require_uneven(uneven)
    require_stream(stream)
    given = _given_shard(rank, size, seed, mode)
    reader = given or (connect() if worker is None else worker)
    if reader.global_size == 1:
        return stream
    if is_sharded(stream) or isinstance(stream, BroadcastStream):
        raise ConfigurationError("got a stream that shard_stream has made, or one with a ShardedScheme: shard once")
    if mode == "broadcast":
        for source in sources_of(stream):
            _refuse_server(source)
        return BroadcastStream(stream, worker=reader)
    if isinstance(reader, Worker):  # a Shard has nobody to compare with
        require_same_stream(stream, reader, "shard_stream")
    wrap = functools.partial(ShardedScheme, uneven=uneven, worker=reader)
    return with_scheme(stream, wrap, reader.global_rank)


def _given_shard(rank: int | None, size: int | None, seed: int | None, mode: str) -> Shard | None:
    if rank is None and size is None and seed is None:
        return None
    if rank is None or size is None or not 0 <= rank < size or (seed or 0) < 0:
        raise ConfigurationError(
            f"got rank={rank}, size={size}, seed={seed}: pass both rank and size, a rank of 0 .. size - 1, and a seed "
            "that is not negative, or none of them in a worker"
        )
    if mode != "shard":
        raise ConfigurationError(f"got mode={mode!r} with rank and size: only the workers of a job can broadcast")
    return Shard(rank, size, seed or 0)


def with_scheme(
    stream: AbstractDataStream, wrap: Callable[[IterationScheme], IterationScheme], rank: int = 0
) -> AbstractDataStream:
    """Return a copy of a stream with another iteration scheme below all its transformers.

    Copies are shallow: data sets and what they have opened are shared. A `MultiProcessing` starts a process of its own.

    Parameters
    ----------
    stream : AbstractDataStream
        If it merges several streams, each of them gets another scheme.
    wrap : callable
        Takes a scheme and returns its replacement; it must not change the scheme given.
    rank : int
        Transformers draw other random numbers on each rank; on rank 0 they keep their generators.

    Raises
    ------
    ConfigurationError
        If this is no stream, or one at the bottom has no iteration scheme.
    """
    for source in sources_of(stream):
        _require_scheme(source)
    return _with_scheme(stream, wrap, rank)


def _with_scheme(stream: Any, wrap: Callable[[IterationScheme], IterationScheme], rank: int) -> Any:
    copied = copy.copy(stream)
    draw_by_rank(copied, rank)
    if hasattr(stream, "data_streams"):
        copied.data_streams = [_with_scheme(part, wrap, rank) for part in stream.data_streams]
    elif hasattr(stream, "data_stream"):
        copied.data_stream = _with_scheme(stream.data_stream, wrap, rank)
    else:
        copied.iteration_scheme = wrap(stream.iteration_scheme)
    if isinstance(stream, MultiProcessing):
        # The process of the original has begun to read the whole stream.
        copied.background = BackgroundProcess(copied.data_stream, stream.background.batches._maxsize)
        copied.proc = Process(target=copied.background.main, daemon=True)
        copied.proc.start()
    return copied


def _require_scheme(source: Any) -> None:
    _refuse_server(source)
    if source.iteration_scheme is None:
        raise ConfigurationError(
            f"got a {type(source).__name__} without an iteration scheme: nobody can tell beforehand which rows it will "
            'give; pass mode="broadcast", and the first worker reads it for all'
        )


def _refuse_server(source: Any) -> None:
    if isinstance(source, ServerDataStream):
        raise ConfigurationError(
            "got a ServerDataStream: the server gives each batch to one of those that are connected, and the end of an "
            "epoch too; run one server for each worker, start_server(shard_stream(stream, rank=r, size=n), port=5557 + "
            "r), and read it by ServerDataStream(..., port=5557 + connect().global_rank), without shard_stream"
        )
