"""Fuel streams: each worker reads its shard, or the first reads for all; all must divide the same stream."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
from collections.abc import Callable
from multiprocessing import Process
from typing import Any

import numpy as np
from fuel.schemes import BatchScheme, BatchSizeScheme, IndexScheme, IterationScheme
from fuel.streams import AbstractDataStream, DataStream, ServerDataStream
from fuel.transformers import BackgroundProcess, Batch, Cache, Filter, MultiProcessing

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.sharding import require_uneven
from platoon_base.worker import SAME_DATA_REMEDY
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
    streams_below,
)

log = logging.getLogger(__name__)

_PART, _WHOLE, _BROADCAST = "a part of", "all of", "what worker 0 reads"
# Rows of a data set to compare.
_ROWS = 16
# Levels of nested objects whose attributes are compared.
_DEPTH = 4


def require_same_stream(stream: Any, worker: Worker, user: str) -> None:
    """Raise if another worker has passed a different stream before; does not wait."""
    links = list(all_streams(stream))
    worker.advanced.require_same_data(
        *(part for link in links for part in _contents(link)), kind=f"{_kind(links[-1])}, given to {user}"
    )


def require_dealt_out(stream: Any, worker: Worker, name: str, *, timeout_s: float) -> None:
    """Raise if workers train on parts of different streams; a collective call."""
    rank, mine = worker.global_rank, _what_is_read(stream)
    read = dict(worker.gather([rank, mine], name=f"the data of {name}", timeout_s=timeout_s))
    parts = {other: what for other, what in read.items() if what.startswith(_PART)}
    if len(set(parts.values())) > 1:
        of_each = ", ".join(f"worker {other} {what}" for other, what in sorted(parts.items()))
        raise ConfigurationError(f"the streams of {name} differ: {of_each}. {SAME_DATA_REMEDY}")
    if len(read) == 1 or set(read.values()) != {mine} or rank != min(read):
        return
    if mine.startswith(_WHOLE):
        log.warning(
            "the %d workers train on the same data, each on all of it in every epoch: divide it "
            "among them with shard_stream(stream)",
            len(read),
        )
    elif mine == _BROADCAST:
        log.warning(
            "the %d workers train on the same batches, which worker 0 reads for all "
            '(mode="broadcast"), so nothing is divided: shard_stream(stream) gives each worker '
            "its own batches of a stream that all can read",
            len(read),
        )


def _what_is_read(stream: Any) -> str:
    """Describe whether a stream has a part of the rows or all, with their fingerprint."""
    if is_broadcast(stream):
        return _BROADCAST
    links = list(all_streams(stream))
    contents = [part for link in links for part in _contents(link)]
    sources = [link for link in links if not streams_below(link)]
    schemes = [list(all_schemes(getattr(source, "iteration_scheme", None))) for source in sources]
    if any(isinstance(part, (DealtStream, ShardedScheme)) for parts in (sources, *schemes) for part in parts):
        return f"{_PART} {fingerprint(*contents)}"
    for source, parts in zip(sources, schemes):
        if any(isinstance(part, (BatchScheme, IndexScheme)) for part in parts):
            continue
        # The server of a ServerDataStream, for instance, may divide the batches.
        if not hasattr(source, "dataset"):
            return "something else"
        # Without a scheme, only the attributes may depend on the rows.
        contents.append(_attributes(source.dataset, _DEPTH))
    return f"{_WHOLE} {fingerprint(*contents)}"


def _attributes(value: Any, depth: int) -> Any:
    """Return attributes for `fingerprint`, which uses only the class of most objects."""
    if isinstance(value, np.random.RandomState):
        return list(value.get_state(legacy=True))[1:3]
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, (list, tuple)) and len(value) <= _ROWS:
        return [_attributes(part, depth) for part in value]
    if depth and hasattr(value, "__dict__") and not hasattr(value, "shape") and not callable(value):
        return [type(value).__name__, {name: _attributes(part, depth - 1) for name, part in vars(value).items()}]
    return value


def _kind(source: Any) -> str:
    return f"{type(getattr(source, 'dataset', None)).__name__} with {', '.join(source.sources)}"


def _contents(link: Any) -> list[Any]:
    """Return what distinguishes a link of a stream from those of other streams, for `fingerprint`."""
    if isinstance(link, DealtStream):
        return [link.uneven, *(part for below in all_streams(link.stream) for part in _contents(below))]
    scheme: Any = getattr(link, "iteration_scheme", None)
    dataset: Any = getattr(link, "dataset", None)
    found: list[Any] = [type(link).__name__, list(getattr(link, "sources", None) or ())]
    rows = None
    for part in all_schemes(scheme) if scheme is not None else ():
        found += [type(part).__name__, *(getattr(part, name, None) for name in ("batch_size", "uneven"))]
        if isinstance(part, (BatchScheme, IndexScheme)):
            indices = np.asarray(part.indices)
            found.append(indices)
            rows = indices if rows is None else rows
    if dataset is not None:
        found += [type(dataset).__name__, getattr(dataset, "num_examples", None)]
    if dataset is not None and rows is not None and len(rows):
        picked = rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int)].tolist()
        # The same kind of requests as the scheme makes: batches or examples.
        requests = picked if scheme.requests_examples else [sorted(set(picked))]
        once, again = (fingerprint(*(list(link.get_data(request)) for request in requests)) for _ in range(2))
        # A data set that draws random numbers is not compared.
        if once == again:
            found.append(once)
    return found


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
        return BroadcastStream(stream, worker=worker)
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
