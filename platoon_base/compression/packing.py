"""Packs all parameters of a model by a codec, and keeps the residuals of earlier rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.compression.codecs import CHUNK, Codec
from platoon_base.dtypes import Array, sum_dtype
from platoon_base.layout import ALIGNMENT, Layout, array_on

# Indices of the words of `Residuals`.
_LATEST, _VERSION = range(2)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize <= 8


def residual_layout(layout: Layout) -> Layout:
    """Return the layout of residuals: float32 for half precision, empty if sent unchanged."""
    specs = []
    for spec in layout.specs:
        dtype = np.dtype(spec.dtype)
        if _is_float(dtype):
            specs.append(spec._replace(dtype=sum_dtype(dtype).name))
        else:
            specs.append(spec._replace(shape=(0,)))
    return Layout(tuple(specs))


class Packing:
    """Packs the parameters of a layout into ``nbytes`` bytes; only floats are encoded."""

    def __init__(self, layout: Layout, codec: Codec) -> None:
        self._codec = codec
        # For each chunk of each parameter, its elements and the bytes of its record.
        self._parts: list[list[tuple[slice, slice]]] = []
        self.nbytes = 0
        for spec in layout.specs:
            dtype, parts = np.dtype(spec.dtype), list[tuple[slice, slice]]()
            for start in range(0, spec.size, CHUNK):
                stop = min(start + CHUNK, spec.size)
                size = codec.nbytes(stop - start) if _is_float(dtype) else (stop - start) * dtype.itemsize
                parts.append((slice(start, stop), slice(self.nbytes, self.nbytes + size)))
                self.nbytes += -(-size // 8) * 8
            self._parts.append(parts)

    def pack(self, arrays: Sequence[Array], before: Sequence[Array], after: Sequence[Array], data: Array) -> None:
        """Pack arrays with their residuals, and replace the arrays by what will be unpacked::

            v := x + before
            x := decode(encode(v))
            after := v - x            0 where that is not finite

        Residuals have `residual_layout`; ``after`` may be ``before``. ``data`` is uint8, shape
        (nbytes,).
        """
        for parameter, own, x, record in self._chunks(arrays, data, packs=True):
            # The sum has the residual's dtype, which is not narrower.
            values = x + before[parameter].reshape(-1)[own]
            self._codec.encode(values, record)
            decode_and_keep(self._codec, record, values, x, after[parameter].reshape(-1)[own])

    def advance(self, reference: Sequence[Array], target: Sequence[Array], data: Array) -> None:
        """Pack the difference from a reference to a target; move the reference as `follow` does."""
        for parameter, own, x, record in self._chunks(target, data, packs=True):
            known, work = reference[parameter].reshape(-1)[own], sum_dtype(x.dtype)
            self._codec.encode(x.astype(work) - known.astype(work), record)
        self.follow(reference, data)

    def follow(self, reference: Sequence[Array], data: Array) -> None:
        """Move a reference by a packed difference; see `advance`."""
        for _, _, known, record in self._chunks(reference, data):
            known[:] = _narrow(self._decoded(record, known) + known, known.dtype)

    def unpack(self, data: Array, arrays: Sequence[Array]) -> None:
        for _, _, x, record in self._chunks(arrays, data):
            x[:] = _narrow(self._decoded(record, x), x.dtype)

    def _decoded(self, record: Array, like: Array) -> Array:
        decoded = np.empty(len(like), sum_dtype(like.dtype))
        self._codec.decode(record, decoded)
        return decoded

    def _chunks(
        self, arrays: Sequence[Array], data: Array, packs: bool = False
    ) -> Iterator[tuple[int, slice, Array, Array]]:
        """Yield parameter, elements, values and record of each chunk of floats; copy other values in or out."""
        for parameter, array in enumerate(arrays):
            flat = array.reshape(-1)
            for own, at in self._parts[parameter]:
                x, record = flat[own], data[at]
                if _is_float(array.dtype):
                    yield parameter, own, x, record
                elif packs:
                    record.view(array.dtype.newbyteorder("<"))[:] = x
                else:
                    x[:] = record.view(array.dtype.newbyteorder("<"))


def decode_and_keep(codec: Codec, data: Array, values: Array, out: Array, rest: Array) -> None:
    """Decode encoded values into ``out``, and keep what was lost::

        out := decode(data)
        rest := values - out        0 where that is not finite

    ``data`` is uint8. ``values`` and ``rest`` are float32 or float64, shape (n,); ``out`` has their
    dtype or a narrower one.
    """
    decoded = out if out.dtype == values.dtype else np.empty_like(values)
    codec.decode(data, decoded)
    if decoded is not out:
        out[:] = _narrow(decoded, out.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(values, out, out=rest)
        finite = np.isfinite(rest.sum())  # This is faster than testing each element first.
    if not finite:
        rest[~np.isfinite(rest)] = 0


def _narrow(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a dtype; finite ones beyond its range become its largest."""
    if dtype == values.dtype:
        return values
    most = np.finfo(dtype).max
    return np.where(np.isfinite(values), np.clip(values, -most, most), values).astype(dtype)


class Residuals:
    """A host's residuals before and after its latest contribution; the memory outlives a courier.

    A courier that is restarted within a round packs the contribution again, from the same
    residuals: the bytes are those that its predecessor sent. A contribution that does not count has
    no effect, see `undo`. ``buffer`` has `size_bytes`, zero at first.
    """

    def __init__(self, layout: Layout, buffer: Any) -> None:
        own = residual_layout(layout)
        # _LATEST: twice the round of the latest residuals, plus which of the two they are; one
        # word, so a killed process leaves no half of it. _VERSION: the version of the center.
        self._words = array_on(buffer, (2,), "i8")
        self._both = [own.views(buffer, ALIGNMENT + i * own.nbytes) for i in range(2)]

    @staticmethod
    def size_bytes(layout: Layout) -> int:
        return ALIGNMENT + 2 * residual_layout(layout).nbytes

    @property
    def latest(self) -> list[Array]:
        """The residuals that the next contribution includes."""
        return self._both[int(self._words[_LATEST]) & 1]

    def begin(self, number: int, version: int) -> tuple[list[Array], list[Array]]:
        """Return the residuals before round ``number`` and memory for those after it; call `end`
        next.

        The caller must write all of that memory. ``version`` belongs to the center: after an
        overwrite the residuals restart at zero.
        """
        self.undo(number)
        if self._words[_VERSION] != version:
            for array in (*self._both[0], *self._both[1]):
                array[...] = 0
            self._words[_VERSION] = version
        latest = int(self._words[_LATEST]) & 1
        return self._both[latest], self._both[1 - latest]

    def end(self, number: int) -> None:
        """Make the residuals after round ``number`` the latest ones."""
        self._words[_LATEST] = 2 * number + 1 - (int(self._words[_LATEST]) & 1)

    def undo(self, number: int) -> None:
        """Return to the residuals before round ``number``, if they were packed into it."""
        if int(self._words[_LATEST]) >> 1 == number:
            self._words[_LATEST] = 1 - (int(self._words[_LATEST]) & 1)
