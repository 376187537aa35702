"""All parameters of a model, packed by a codec; and the residuals, what packing has left out of earlier rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.compression.codecs import CHUNK, Codec
from platoon_base.layout import ALIGNMENT, Layout, Piece
from platoon_base.views import array_on

__all__ = ["Packing", "Residuals", "decode_and_keep", "residual_layout"]

Array = np.ndarray[Any, Any]

_LATEST, _STAMP, _PACKED, _RESTORED, _DROPPED, _DIFFER = range(6)  # the words of `Residuals`


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize <= 8


def _work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("f8") if dtype.itemsize == 8 else np.dtype("f4")


def residual_layout(layout: Layout) -> Layout:
    """Return the layout of residuals: half precision is kept in float32, and what is sent as it is takes no room."""
    specs = []
    for spec in layout.specs:
        dtype = np.dtype(spec.dtype)
        if _is_float(dtype):
            specs.append(spec._replace(dtype=_work_dtype(dtype).name))
        else:
            specs.append(spec._replace(shape=(0,)))
    return Layout(tuple(specs))


class _Part(NamedTuple):
    """Where a chunk of a parameter is packed."""

    start: int
    stop: int
    at: int
    nbytes: int


class Packing:
    """Packs the parameters of a layout into a buffer whose size depends on the layout alone.

    Arrays that are not of float16, float32 or float64 are sent as they are, in little-endian order.

    Parameters
    ----------
    layout : Layout
    codec : Codec

    Attributes
    ----------
    nbytes : int
        The size of the packed parameters.
    """

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
        """Pack arrays with their residuals, and replace the arrays by what will be unpacked.

        ::

            v := x + before
            x := decode(encode(v))
            after := v - x            0 where that is not finite

        Parameters
        ----------
        arrays, before, after : sequence of ndarray
            Residuals have `residual_layout`; ``after`` may be ``before``.
        data : ndarray of uint8, shape (nbytes,)
        """
        for parameter, array in enumerate(arrays):
            for part, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    bytes_.view(array.dtype.newbyteorder("<"))[:] = x
                    continue
                own = slice(part.start, part.stop)
                values = x + before[parameter].reshape(-1)[own]  # of the residual's dtype, which is no narrower
                self._codec.encode(values, bytes_)
                decode_and_keep(self._codec, bytes_, values, x, after[parameter].reshape(-1)[own])

    def advance(self, reference: Sequence[Array], target: Sequence[Array], data: Array) -> None:
        """Pack the difference from a reference to a target, and move the reference as `follow` moves copies of it."""
        for parameter, array in enumerate(target):
            for part, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    bytes_.view(array.dtype.newbyteorder("<"))[:] = x
                    continue
                known = reference[parameter].reshape(-1)[part.start : part.stop]
                work = _work_dtype(array.dtype)
                self._codec.encode(x.astype(work) - known.astype(work), bytes_)
        self.follow(reference, data)

    def follow(self, reference: Sequence[Array], data: Array) -> None:
        """Move a reference by a packed difference; see `advance`."""
        for parameter, array in enumerate(reference):
            for _, known, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    known[:] = bytes_.view(array.dtype.newbyteorder("<"))
                    continue
                moved = np.empty(len(known), _work_dtype(array.dtype))
                self._codec.decode(bytes_, moved)
                moved += known
                known[:] = _narrow(moved, known.dtype)

    def unpack(self, data: Array, arrays: Sequence[Array]) -> None:
        """Unpack into arrays."""
        for parameter, array in enumerate(arrays):
            for _, x, bytes_ in self._chunks(parameter, array, data):
                if not _is_float(array.dtype):
                    x[:] = bytes_.view(array.dtype.newbyteorder("<"))
                    continue
                decoded = np.empty(len(x), _work_dtype(array.dtype))
                self._codec.decode(bytes_, decoded)
                x[:] = _narrow(decoded, x.dtype)

    def _chunks(self, parameter: int, array: Array, data: Array) -> Iterator[tuple[_Part, Array, Array]]:
        flat = array.reshape(-1)
        for part in self._parts[parameter]:
            yield part, flat[part.start : part.stop], data[part.at : part.at + part.nbytes]


def decode_and_keep(codec: Codec, data: Array, values: Array, out: Array, rest: Array) -> None:
    """Decode what values have become, and keep what was lost.

    ::

        out := decode(data)
        rest := values - out        0 where that is not finite

    Parameters
    ----------
    codec : Codec
    data : ndarray of uint8
        The encoded values.
    values, rest : ndarray, shape (n,), float32 or float64
    out : ndarray, shape (n,)
        Of their dtype or a narrower one.
    """
    decoded = out if out.dtype == values.dtype else np.empty_like(values)
    codec.decode(data, decoded)
    if decoded is not out:
        out[:] = _narrow(decoded, out.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(values, out, out=rest)
        finite = np.isfinite(rest.sum())  # faster than many tests
    if not finite:
        rest[~np.isfinite(rest)] = 0


def _narrow(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a dtype; finite ones beyond its range become its largest."""
    if dtype == values.dtype:
        return values
    most = np.finfo(dtype).max
    return np.where(np.isfinite(values), np.clip(values, -most, most), values).astype(dtype)


class Residuals:
    """The residuals of one host, before and after its latest contribution, in memory that outlives a courier.

    A courier that is restarted in the middle of a round packs the contribution again, from the same residuals, so that
    the bytes are those which its predecessor has sent. A contribution that does not count takes no effect: see `undo`.

    Parameters
    ----------
    layout : Layout
        Of the parameters.
    buffer : writable buffer
        Of `size_bytes`, zero at first.
    """

    def __init__(self, layout: Layout, buffer: Any) -> None:
        own = residual_layout(layout)
        # Twice the round that the latest residuals come from, and which of the two they are: one word, so that the end
        # of the process leaves no half of it. Behind it the stamp of the center, the round that was packed last or is
        # being packed, whether saved residuals were put in, the latest round without this host's contribution, and the
        # round in whose fragment alone the two differ.
        self._words = array_on(buffer, (6,), "i8")
        self._both = [own.views(buffer, ALIGNMENT + i * own.nbytes) for i in range(2)]

    @staticmethod
    def size_bytes(layout: Layout) -> int:
        """Return the size of the memory."""
        return ALIGNMENT + 2 * residual_layout(layout).nbytes

    @property
    def latest(self) -> list[Array]:
        """The residuals that the next contribution takes along."""
        return self._both[int(self._words[_LATEST]) & 1]

    def begin(
        self, number: int, stamp: int, pieces: Callable[[int], tuple[Piece, ...]] = lambda number: ()
    ) -> tuple[list[Array], list[Array]]:
        """Return the residuals before round ``number``, and the memory for those after it; `end` follows.

        That memory has to be written in the fragment of the round.

        Parameters
        ----------
        number : int
        stamp : int
            Of the center, see `platoon_base.centers.overwrites`: with an overwrite the residuals start again at zero.
        pieces : callable
            Returns those of the fragment that a round takes.
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
        """Return to the residuals before round ``number``, if they were packed into a contribution to it."""
        if int(self._words[_LATEST]) >> 1 == number:
            self._words[_LATEST] = 1 - (int(self._words[_LATEST]) & 1)

    def drop(self, number: int) -> None:
        """Return to the residuals before round ``number``, which does not have this host's contribution."""
        self.undo(number)
        self._words[_DROPPED] = number

    def after(self, number: int, stamp: int) -> list[Array] | None:
        """Return the residuals that belong to a center at round ``number``; None if they are there no more.

        They stay until a contribution to round ``number + 2`` is packed. If the contribution to round ``number`` itself
        did not count, `drop` it before; if it did, and a courier that packs it again has died, they are not there.

        Parameters
        ----------
        number : int
        stamp : int
            Of that center. Residuals from before its latest overwrite are zero by now; one after it has ended them.
        """
        known = int(self._words[_STAMP])
        if int(self._words[_PACKED]) > number + 1 or known > stamp:
            return None
        if known < stamp:  # no contribution was packed since the overwrite
            return [np.zeros_like(array) for array in self.latest]
        latest, which = divmod(int(self._words[_LATEST]), 2)
        if int(self._words[_PACKED]) == number and number not in (latest, int(self._words[_DROPPED])):
            return None
        return self._both[1 - which if latest == number + 1 else which]

    @property
    def restored(self) -> bool:
        """Whether saved residuals were put in, or found to be unusable, by this courier or an earlier one."""
        return bool(self._words[_RESTORED])

    def restore(self, saved: Sequence[Array] | None) -> None:
        """Begin with saved residuals, or with zeros if there are none, before the first round of a new center.

        An earlier courier may have died while it did so.
        """
        for both in self._both:
            for i, array in enumerate(both):
                np.copyto(array, 0 if saved is None else saved[i])
        self._words[_RESTORED] = 1
