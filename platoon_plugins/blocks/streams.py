"""Fuel streams: those of this package, and the parts of a stream."""

from __future__ import annotations

import contextlib
import copy
import enum
import logging
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from fuel.iterator import DataIterator
from fuel.streams import AbstractDataStream
from fuel.transformers import Mapping, Transformer

from platoon_base import Worker, connect
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.fingerprint import fingerprint
from platoon_base.job import connected
from platoon_base.sharding import shard_seed
from platoon_plugins.blocks.schemes import CurrentShard, Shard, ShardedScheme, all_schemes

log = logging.getLogger(__name__)


class StreamAbove(AbstractDataStream):
    """A stream above another one; attributes that it lacks are those of ``stream``."""

    def __init__(self, stream: AbstractDataStream) -> None:
        super().__init__(axis_labels=stream.axis_labels)
        self.sources = tuple(stream.sources)
        self.produces_examples = stream.produces_examples
        self.stream = stream

    @property
    def data_stream(self) -> Any:
        """The stream below, under the name of Fuel's transformers."""
        return self.stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "stream" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.stream, name)

    def reset(self) -> None:
        self.stream.reset()

    def next_epoch(self) -> None:
        self.stream.next_epoch()

    def close(self) -> None:
        self.stream.close()


def streams_below(stream: Any) -> list[Any]:
    """Return the streams that a transformer reads; none for a source or a `StreamAbove`."""
    if isinstance(stream, StreamAbove):
        return []
    merged = getattr(stream, "data_streams", None)
    if merged is None:
        below = getattr(stream, "data_stream", None)
        return [] if below is None else [below]
    return list(merged)


_NUMERIC_KINDS = "biufc"


class _Kind(enum.IntEnum):
    BATCH = 0
    END = 1
    FAILED = 2


class BroadcastStream(StreamAbove):
    """Give all workers the same batches: the first worker reads them and sends them to the others.

    Each batch is a collective call, so all workers read equally many batches in equally many
    epochs. If reading fails, the first worker raises the error, and the others raise one with its
    text. To resume in the middle of an epoch, load the first worker's pickle on all workers.

    ::

        header := int64[2]: kind, bytes
        body   := uint8[bytes]: the dtype, shape and bytes of each array (msgpack), or an error's text
    """

    def __init__(self, stream: AbstractDataStream, *, worker: Worker | None = None) -> None:
        super().__init__(stream)
        self._worker = connect() if worker is None else worker
        self._batches: Iterator[Any] | None = None
        self._ended = False

    def get_epoch_iterator(self, **kwargs: Any) -> DataIterator:
        self._batches, self._ended = None, False
        return super().get_epoch_iterator(**kwargs)

    def get_data(self, request: Any = None) -> tuple[Array, ...]:
        """Return the next batch, the same on every worker, in new, writable arrays."""
        if request is not None:
            raise ValueError(f"got the request {request!r}: this stream takes no requests")
        if self._ended:
            raise StopIteration
        self._worker = connect() if self._worker is None else self._worker
        batch = self._receive() if self._worker.global_rank else self._send()
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch

    def _send(self) -> tuple[Array, ...] | None:
        try:
            # An error here must also reach the others.
            if self._batches is None:
                self._batches = self.stream.get_epoch_iterator()
            batch = next(self._batches)
            # A Mapping may return more arrays than it names.
            names = [*self.sources, *map(str, range(len(self.sources), len(batch)))]
            body = packed(_numbers(name, data) for name, data in zip(names, batch))
        except StopIteration:
            self._announce(_Kind.END)
            return None
        except Exception as exc:
            # Raise the cause even if it cannot be sent to the others.
            with contextlib.suppress(PlatoonError):
                text = f"{type(exc).__name__}: {exc}".encode(errors="replace")
                self._announce(_Kind.FAILED, np.frombuffer(text, np.uint8))
            raise
        self._announce(_Kind.BATCH, body)
        return unpacked(body)

    def _announce(self, kind: _Kind, body: Array | None = None) -> None:
        size_bytes = 0 if body is None else len(body)
        self._worker.broadcast([np.array([kind, size_bytes], np.int64)])
        if body is not None:
            self._worker.broadcast([body.copy()])  # The worker needs writable memory.

    def _receive(self) -> tuple[Array, ...] | None:
        header = np.empty(2, np.int64)
        self._worker.broadcast([header])
        kind, size_bytes = header.tolist()
        if kind == _Kind.END:
            return None
        body = np.empty(size_bytes, np.uint8)
        self._worker.broadcast([body])
        if kind == _Kind.FAILED:
            raise PlatoonError(
                f"worker 0, which reads the data for all, failed with {body.tobytes().decode()}; see its log"
            )
        return unpacked(body)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}


def packed(arrays: Iterable[Array]) -> Array:
    """Return the bytes of arrays with their dtypes and shapes."""
    parts = [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]
    return np.frombuffer(msgspec.msgpack.encode(parts), np.uint8)


def unpacked(body: Array) -> tuple[Array, ...]:
    """Return new arrays from the bytes of `packed`."""
    parts = msgspec.msgpack.decode(body.data, type=list[tuple[str, tuple[int, ...], bytearray]])
    return tuple(np.ndarray(shape, dtype, data) for dtype, shape, data in parts)


def _numbers(source: str, data: Any) -> Array:
    array = data if isinstance(data, np.ndarray) else _array(data)
    if array.dtype.kind not in _NUMERIC_KINDS:
        raise ConfigurationError(
            f"got {array.dtype} data of the source {source!r}: only arrays of numbers can be sent "
            "to the others; before that make rows equally long (fuel.transformers.Padding), and "
            "convert text to numbers"
        )
    return array


def _array(data: Any) -> Array:
    """Return an array; NumPy before 1.24 warns for ragged rows, and later versions raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(data)
        except ValueError:
            # This is raised by NumPy 1.24 and later. The caller reports dtype object.
            return np.empty(0, object)


_REMEDY = (
    "Each worker reads the whole stream and keeps every N-th batch, so the streams must give the "
    "same batches in the same order. Seed shuffles and random numbers in it, for example with "
    "numpy.random.RandomState(0), and use the same files on all workers. If each worker should "
    "draw its own batches, leave shard_stream out"
)


class DealtStream(StreamAbove):
    """Divide the batches of a stream without row numbers, such as a text file, among the workers.

    Every worker reads all batches of an epoch (or examples); worker k of N keeps b_k, b_{k+N}, ...,
    with the ``uneven`` of a `ShardedScheme`. The workers compare their batches under ``name``,
    unless it is empty. A pickle, taken to be at the end of a round, continues with any number of
    workers.
    """

    def __init__(self, stream: AbstractDataStream, *, uneven: str, worker: Worker | Shard, name: str = "") -> None:
        super().__init__(stream)
        self.uneven = uneven
        self.name = name
        self.epoch = 0
        self._current = CurrentShard(worker)
        self._batches: Iterator[Any] | None = None
        self._read, self._ended = 0, False
        self._compared = self._warned = False

    def get_epoch_iterator(self, **kwargs: Any) -> DataIterator:
        self._batches = self.stream.get_epoch_iterator()
        self._read, self._ended = 0, False
        self.epoch += 1
        return super().get_epoch_iterator(**kwargs)

    def get_data(self, request: Any = None) -> Any:
        if request is not None:
            raise ValueError(f"got the request {request!r}: this stream takes no requests")
        if self._ended or self._batches is None:
            # Some streams would start the next epoch if they were read now.
            raise StopIteration
        rank, size, _ = self._current.get()
        together = list(islice(self._batches, size))
        read_before, self._read = self._read, self._read + len(together)
        self._ended = len(together) < size
        self._compare(together)
        if not self._ended or (rank < len(together) and self.uneven != "drop"):
            return together[rank]
        if together and self.uneven == "wrap":
            return together[rank % len(together)]
        if not read_before:
            raise ConfigurationError(
                f"got {len(together)} {self._unit} in an epoch for {size} workers, so "
                f"uneven={self.uneven!r} leaves worker {rank} without any: make batches smaller, "
                'use fewer workers, or uneven="wrap"'
            )
        if together and self.uneven == "drop":
            self._warn_of_dropped(len(together), rank)
        raise StopIteration

    @property
    def _unit(self) -> str:
        return "examples" if self.produces_examples else "batches"

    def _compare(self, together: list[Any]) -> None:
        """Raise if another worker has read other batches; do nothing outside of a job."""
        worker = connected()
        if worker is None or worker.global_size == 1 or not self.name:
            return
        if not self._compared:
            self._compared = True
            what = f"what is read from number {self._read - len(together)} of the {self._unit} of epoch {self.epoch} on"
            worker.advanced.require_same(f"{self.name}: {what}", fingerprint(*together), _REMEDY)
        if self._ended:
            what = f"the number of {self._unit} in epoch {self.epoch}"
            worker.advanced.require_same(f"{self.name}: {what}", str(self._read), _REMEDY)

    def _warn_of_dropped(self, dropped: int, rank: int) -> None:
        if not self._warned and not rank:
            log.warning(
                'uneven="drop" omits the last %d of %d %s in an epoch of the stream; uneven="wrap" uses them',
                dropped,
                self._read,
                self._unit,
            )
        self._warned = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compared": False}


# These methods of Fuel read one batch for each batch that they return.
_ONE_TO_ONE = (Transformer.get_data, Mapping.get_data)


def all_streams(stream: Any) -> Iterator[Any]:
    """Yield a stream and all streams below it, including merged ones."""
    yield stream
    for below in streams_below(stream):
        yield from all_streams(below)


def sources_of(stream: Any) -> Iterator[Any]:
    """Yield the streams at the bottom, below all transformers."""
    for link in all_streams(stream):
        require_stream(link)
        if not streams_below(link):
            yield link


def is_sharded(stream: AbstractDataStream) -> bool:
    sources = list(sources_of(stream))
    schemes = (scheme for source in sources for scheme in all_schemes(source.iteration_scheme))
    return any(isinstance(part, (DealtStream, ShardedScheme)) for part in (*sources, *schemes))


def is_broadcast(stream: Any) -> bool:
    """Return whether each batch is a collective call, as the first worker reads for all."""
    return any(isinstance(link, BroadcastStream) for link in all_streams(stream))


def maps_one_to_one(stream: Any) -> bool:
    """Return whether a transformer yields one batch, or example, for each that it reads."""
    kind = type(stream)
    return (
        isinstance(stream, Transformer)
        and stream.iteration_scheme is None
        and kind.get_epoch_iterator is Transformer.get_epoch_iterator
        and kind.get_data in _ONE_TO_ONE
    )


def draw_by_rank(transformer: Any, rank: int) -> None:
    """Reseed the random generators of a transformer by the rank; rank 0 keeps its generators."""
    for name, value in list(vars(transformer).items()) if rank else ():
        if isinstance(value, np.random.RandomState):
            drawn = copy.deepcopy(value).randint(2**31 - 1)
            setattr(transformer, name, np.random.RandomState(shard_seed(int(drawn), rank) % 2**32))
        elif isinstance(value, np.random.Generator):
            drawn = copy.deepcopy(value).integers(2**31 - 1)
            setattr(transformer, name, np.random.default_rng([int(drawn), rank]))


def require_stream(stream: Any) -> None:
    if not isinstance(stream, AbstractDataStream):
        raise ConfigurationError(
            f"got {type(stream).__name__}: pass a Fuel stream, such as DataStream(dataset, iteration_scheme=...)"
        )
