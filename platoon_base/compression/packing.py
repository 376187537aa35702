"""Packs all parameters of a model by a codec, and keeps the residuals of earlier rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.compression.codecs import CHUNK, Codec
from platoon_base.dtypes import sum_dtype
from platoon_base.layout import ALIGNMENT, Layout, Piece
from platoon_base.views import array_on

__all__ = ["Packing", "Residuals", "decode_and_keep", "residual_layout"]

Array = np.ndarray[Any, Any]

# Indices of the words of `Residuals`.
_LATEST, _STAMP, _PACKED, _RESTORED, _DROPPED, _DIFFER = range(6)


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


class _Part(NamedTuple):
    """Location of a packed chunk of a parameter."""

    start: int
    stop: int
    at: int
    nbytes: int


class Packing:
    """Packs the parameters of a layout into ``nbytes`` bytes; only floats are encoded."""

    def __init__(self, layout: Layout, codec: Codec) -> None:
        self._codec = codec
        self._parts: list[list[_Part]] = []
        self.nbytes = 0
        for spec in layout.specs:
            dtype, parts = np.dtype(spec.dtype), []
            for start in range(0, spec.size, CHUNK):
                stop = min(start + CHUNK, spec.size)
                size = codec.nbytes(stop - start) if _is_float(dtype) else (stop - start) * dtype.itemsize
                parts.append(_Part(start, stop, self.nbytes, size))
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
        for parameter, array in enumerate(arrays):
            for part, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    bytes_.view(array.dtype.newbyteorder("<"))[:] = x
                    continue
                own = slice(part.start, part.stop)
                # The sum has the residual's dtype, which is not narrower.
                values = x + before[parameter].reshape(-1)[own]
                self._codec.encode(values, bytes_)
                decode_and_keep(self._codec, bytes_, values, x, after[parameter].reshape(-1)[own])

    def advance(self, reference: Sequence[Array], target: Sequence[Array], data: Array) -> None:
        """Pack the difference from a reference to a target; move the reference as `follow` does."""
        for parameter, array in enumerate(target):
            for part, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    bytes_.view(array.dtype.newbyteorder("<"))[:] = x
                    continue
                known = reference[parameter].reshape(-1)[part.start : part.stop]
                work = sum_dtype(array.dtype)
                self._codec.encode(x.astype(work) - known.astype(work), bytes_)
        self.follow(reference, data)

    def follow(self, reference: Sequence[Array], data: Array) -> None:
        """Move a reference by a packed difference; see `advance`."""
        for parameter, array in enumerate(reference):
            for _, known, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    known[:] = bytes_.view(array.dtype.newbyteorder("<"))
                    continue
                moved = np.empty(len(known), sum_dtype(array.dtype))
                self._codec.decode(bytes_, moved)
                moved += known
                known[:] = _narrow(moved, known.dtype)

    def unpack(self, data: Array, arrays: Sequence[Array]) -> None:
        for parameter, array in enumerate(arrays):
            for _, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    x[:] = bytes_.view(array.dtype.newbyteorder("<"))
                    continue
                decoded = np.empty(len(x), sum_dtype(array.dtype))
                self._codec.decode(bytes_, decoded)
                x[:] = _narrow(decoded, x.dtype)

    def _chunks(self, parameter: int, array: Array, data: Array) -> Iterator[tuple[_Part, Array, Array]]:
        flat = array.reshape(-1)
        for part in self._parts[parameter]:
            yield part, flat[part.start : part.stop], data[part.at : part.at + part.nbytes]


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
        # word, so a killed process leaves no half of it. _STAMP: the stamp of the center. _PACKED:
        # the round that is or was packed last. _RESTORED: whether saved residuals were restored.
        # _DROPPED: the latest round without this host's contribution. _DIFFER: the two differ in
        # the fragment of this round only.
        self._words = array_on(buffer, (6,), "i8")
        self._both = [own.views(buffer, ALIGNMENT + i * own.nbytes) for i in range(2)]

    @staticmethod
    def size_bytes(layout: Layout) -> int:
        return ALIGNMENT + 2 * residual_layout(layout).nbytes

    @property
    def latest(self) -> list[Array]:
        """The residuals that the next contribution includes."""
        return self._both[int(self._words[_LATEST]) & 1]

    def begin(
        self, number: int, stamp: int, pieces: Callable[[int], tuple[Piece, ...]] = lambda number: ()
    ) -> tuple[list[Array], list[Array]]:
        """Return the residuals before round ``number`` and memory for those after it; call `end`
        next.

        The caller must write that memory in the fragment of the round; ``pieces(number)`` returns
        its pieces. ``stamp`` belongs to the center: after an overwrite the residuals restart at
        zero.
        """
        self.undo(number)
        self._words[_PACKED] = number
        if self._words[_STAMP] != stamp:
            for array in (*self._both[0], *self._both[1]):
                array[...] = 0
            self._words[_STAMP] = stamp
        latest = int(self._words[_LATEST]) & 1
        before, after = self._both[latest], self._both[1 - latest]
        differ = pieces(int(self._words[_DIFFER]))
        if differ != pieces(number):
            for parameter, *ends in differ:
                own = slice(*ends)
                np.copyto(after[parameter].reshape(-1)[own], before[parameter].reshape(-1)[own])
        self._words[_DIFFER] = number
        return before, after

    def end(self, number: int) -> None:
        """Make the residuals after round ``number`` the latest ones."""
        self._words[_LATEST] = 2 * number + 1 - (int(self._words[_LATEST]) & 1)

    def undo(self, number: int) -> None:
        """Return to the residuals before round ``number``, if they were packed into it."""
        if int(self._words[_LATEST]) >> 1 == number:
            self._words[_LATEST] = 1 - (int(self._words[_LATEST]) & 1)

    def drop(self, number: int) -> None:
        """Return to the residuals before round ``number``, which lacks this host's contribution."""
        self.undo(number)
        self._words[_DROPPED] = number

    def after(self, number: int, stamp: int) -> list[Array] | None:
        """Return the residuals of a center at round ``number`` with a stamp; None if they are lost.

        They stay until a contribution to round ``number + 2`` is packed. If the contribution to
        round ``number`` did not count, `drop` it first. If a courier died while packing it again,
        they are lost. Residuals from before an overwrite are zero after it.
        """
        known = int(self._words[_STAMP])
        if int(self._words[_PACKED]) > number + 1 or known > stamp:
            return None
        if known < stamp:  # No contribution was packed since the overwrite.
            return [np.zeros_like(array) for array in self.latest]
        latest, which = divmod(int(self._words[_LATEST]), 2)
        if int(self._words[_PACKED]) == number and number not in (latest, int(self._words[_DROPPED])):
            return None
        return self._both[1 - which if latest == number + 1 else which]

    @property
    def restored(self) -> bool:
        """Whether some courier of this host has restored residuals, or found them unusable."""
        return bool(self._words[_RESTORED])

    def restore(self, saved: Sequence[Array] | None) -> None:
        """Begin with saved residuals, or zeros, before the first round of a new center."""
        # An earlier courier may have died while it did so.
        for both in self._both:
            for i, array in enumerate(both):
                np.copyto(array, 0 if saved is None else saved[i])
        self._words[_RESTORED] = 1
