"""A stream that the first worker reads for all, for data that cannot be divided."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from fuel.iterator import DataIterator
from fuel.streams import AbstractDataStream

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_plugins.blocks.above import StreamAbove

__all__ = ["BroadcastStream"]

Array = np.ndarray[Any, Any]
_Spec = tuple[str, tuple[int, ...]]

_NUMERIC_KINDS = "biufc"
_ALIGNMENT = 64


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

        header := int64[3]: kind, bytes of the description, bytes of all
        body   := uint8[bytes of all]: description (msgpack: dtypes, shapes), aligned arrays
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
            body, description_bytes = _packed(self.sources, next(self._batches))
        except StopIteration:
            self._announce(_Kind.END)
            return None
        except Exception as exc:
            # Raise the cause even if it cannot be sent to the others.
            with contextlib.suppress(PlatoonError):
                text = f"{type(exc).__name__}: {exc}".encode(errors="replace")
                self._announce(_Kind.FAILED, np.frombuffer(text, np.uint8).copy())
            raise
        self._announce(_Kind.BATCH, body, description_bytes)
        return _unpacked(body, description_bytes)

    def _announce(self, kind: _Kind, body: Array | None = None, description_bytes: int = 0) -> None:
        size_bytes = 0 if body is None else len(body)
        self._worker.broadcast([np.array([kind, description_bytes, size_bytes], np.int64)])
        if body is not None:
            self._worker.broadcast([body])

    def _receive(self) -> tuple[Array, ...] | None:
        header = np.empty(3, np.int64)
        self._worker.broadcast([header])
        kind, description_bytes, size_bytes = header.tolist()
        if kind == _Kind.END:
            return None
        body = np.empty(size_bytes, np.uint8)
        self._worker.broadcast([body])
        if kind == _Kind.FAILED:
            raise PlatoonError(
                f"worker 0, which reads the data for all, failed with {body.tobytes().decode()}; see its log"
            )
        return _unpacked(body, description_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}


# Packing of arrays into one buffer.


def _packed(sources: Sequence[str], batch: Sequence[Any]) -> tuple[Array, int]:
    """Return a buffer with a description and all arrays, and the description's bytes."""
    # A Mapping may return more arrays than it names.
    names = [*sources, *map(str, range(len(sources), len(batch)))]
    arrays = [_numbers(name, data) for name, data in zip(names, batch)]
    specs = [(array.dtype.str, array.shape) for array in arrays]
    description = msgspec.msgpack.encode(specs)
    *_, end = _offsets(specs, len(description))
    body = np.zeros(end, np.uint8)
    body[: len(description)] = np.frombuffer(description, np.uint8)
    for view, array in zip(_unpacked(body, len(description)), arrays):
        view[...] = array
    return body, len(description)


def _unpacked(body: Array, description_bytes: int) -> tuple[Array, ...]:
    """Return the arrays in a buffer, as views of it."""
    specs = msgspec.msgpack.decode(body[:description_bytes], type=list[_Spec])
    offsets = _offsets(specs, description_bytes)
    return tuple(np.ndarray(shape, dtype, body, offset) for (dtype, shape), offset in zip(specs, offsets))


def _offsets(specs: Sequence[_Spec], start: int) -> list[int]:
    offsets, end = [], start
    for dtype, shape in specs:
        offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = offsets[-1] + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    return [*offsets, end]


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
