"""Codecs for float arrays between hosts, and the memory of what they left out.

Decoding depends on the bytes only, so all hosts get the same bits. All numbers are little-endian.
NaN and infinity decode to values that are not finite, element by element; finite values stay
finite.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.system.imports import extension

# It gives the same bits on little-endian machines; NumPy is several times slower.
EXTENSION: Any = extension("_codecs") if sys.byteorder == "little" else None

CHUNK = 1 << 16  # Elements that are encoded together: they stay within the caches.
NONE = "none"

_NOT_FINITE_8 = -128
_TINY = np.float32(np.finfo("f4").tiny)
_MOST = np.float32(np.finfo("f4").max)


class Codec(Protocol):
    """Encodes and decodes chunks of numbers, float32 or float64."""

    def nbytes(self, n: int) -> int:
        """Return the size of ``n`` encoded elements."""
        ...

    def encode(self, values: Array, data: Array) -> None:
        """Encode ``values``, shape (n,), into ``data``, uint8."""
        ...

    def decode(self, data: Array, out: Array) -> None:
        """Decode into ``out``, shape (n,), of the dtype that was encoded."""
        ...


@dataclass(frozen=True)
class Float16:
    """Half precision. Finite values beyond its range become 65504."""

    def nbytes(self, n: int) -> int:
        return 2 * n

    def encode(self, values: Array, data: Array) -> None:
        halves = data.view("<f2")
        with np.errstate(over="ignore"):
            halves[:] = values
        beyond = np.isinf(halves)
        if beyond.any():
            beyond &= np.isfinite(values)
            halves[beyond] = np.copysign(np.finfo("f2").max, values[beyond])

    def decode(self, data: Array, out: Array) -> None:
        out[:] = data.view("<f2")


@dataclass(frozen=True)
class Truncated:
    """bfloat16: the upper half of float32, rounded to nearest, ties to even."""

    def nbytes(self, n: int) -> int:
        return 2 * n

    def encode(self, values: Array, data: Array) -> None:
        if values.dtype != np.float32:
            values = np.where(np.isfinite(values), np.clip(values, -_MOST, _MOST), values).astype("f4")
        bits = values.view("u4")
        rounded = bits + (0x7FFF + ((bits >> 16) & 1))
        high = (rounded >> 16).astype("<u2")
        magnitude = bits & 0x7FFFFFFF
        sign = (bits >> 16 & 0x8000).astype("u2")
        high = np.where((magnitude < 0x7F800000) & (magnitude >= 0x7F7F8000), sign | 0x7F7F, high)
        data.view("<u2")[:] = np.where(magnitude > 0x7F800000, sign | 0x7FC0, high)

    def decode(self, data: Array, out: Array) -> None:
        out[:] = (data.view("<u2").astype("u4") << 16).view("f4")


def _run(name: str, kind: int, values: Array, data: Array, whole: int = 0, rest: int = 0) -> bool:
    """Encode or decode by the C extension; return whether it could."""
    if EXTENSION is None or values.dtype != np.float32:
        return False
    if not (values.flags.c_contiguous and data.flags.c_contiguous):
        return False
    getattr(EXTENSION, name)(kind, values.ctypes.data, values.size, data.ctypes.data, whole, rest)
    return True


def _scales(largest: Array, levels: int) -> Array:
    """Return the scales of blocks: 0 where the largest magnitude is too small for one."""
    with np.errstate(over="ignore", under="ignore"):
        found = np.minimum(largest, _MOST).astype("f4") / np.float32(levels)
    found = np.minimum(found, _MOST / np.float32(levels + 1))
    return np.where(found < _TINY, np.float32(0), found)


def _levels(values: Array, scales: Array, levels: int, not_finite: int) -> Array:
    """Return rows of values, divided by their row's scale and rounded."""
    finite = np.isfinite(values)
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverse, where=scales > 0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        found = np.clip(np.rint(values * inverse[:, None]), -levels, levels)
    return np.where(finite, found, not_finite).astype("i1")


def _rows(values: Array, width: int) -> Array:
    missing = -len(values) % width
    return (np.concatenate([values, np.zeros(missing, values.dtype)]) if missing else values).reshape(-1, width)


def _largest(rows: Array) -> Array:
    largest: Array = np.max(np.where(np.isfinite(rows), np.abs(rows), 0), axis=1)
    return largest


def _scaled(codes: Array, scales: Array, not_finite: int, dtype: Any) -> Array:
    found: Array = codes.astype(dtype) * scales.astype(dtype)[:, None]
    found[codes == not_finite] = np.nan
    return found


@dataclass(frozen=True)
class Blocks:
    """Whole numbers of 8, 4 or 2 bits, in blocks with a float32 scale each: scales, then numbers.

    A block has 256 numbers of 8 bits, otherwise 128. A byte is filled from its lowest bits. With 8
    and 4 bits the numbers are -127 to 127 and -7 to 7, and the scale makes the largest magnitude
    the last of them. With 2 bits they are -1, 0 and 1 and the scale is half of the largest
    magnitude: values that exceed half of the scale are sent as the scale with their sign. With
    residuals these are the thresholded values of Strom 2015, with a threshold for each block.
    """

    bits: int

    @property
    def block(self) -> int:
        return 256 if self.bits == 8 else 128

    @property
    def _levels(self) -> int:
        return (1 << self.bits - 1) - 1

    @property
    def _not_finite(self) -> int:
        return -1 << self.bits - 1  # The code that no level has.

    def nbytes(self, n: int) -> int:
        return 4 * -(-n // self.block) + -(-n * self.bits // 8)

    def encode(self, values: Array, data: Array) -> None:
        if _run("encode", self.bits, values, data):
            return
        rows = _rows(values, self.block)
        scales = _scales(_largest(rows), max(2, self._levels))
        data[: 4 * len(rows)].view("<f4")[:] = scales
        numbers = data[4 * len(rows) :]
        codes = _levels(rows, scales, self._levels, self._not_finite).view("u1").reshape(-1, 8 // self.bits)
        codes &= (1 << self.bits) - 1
        numbers[:] = np.bitwise_or.reduce(codes << self._places(), axis=1)[: len(numbers)]

    def decode(self, data: Array, out: Array) -> None:
        if _run("decode", self.bits, out, data):
            return
        count = -(-len(out) // self.block)
        numbers = data[4 * count :]
        # The levels get the signs of the values.
        codes = (numbers[:, None] << (8 - self.bits - self._places())).view("i1") >> 8 - self.bits
        rows = _rows(codes.reshape(-1)[: len(out)], self.block)
        out[:] = _scaled(rows, data[: 4 * count].view("<f4"), self._not_finite, out.dtype).reshape(-1)[: len(out)]

    def _places(self) -> Array:
        return np.arange(0, 8, self.bits, dtype="u1")


@dataclass(frozen=True)
class TopK:
    """The largest magnitudes of each block of 4096 as 8-bit integers with their places."""

    part: float

    block = 4096

    def _both(self, n: int) -> tuple[int, int]:
        """Return the numbers of kept elements of a whole block and of the shorter last one."""
        return self._kept(self.block), self._kept(n % self.block)

    def _kept(self, n: int) -> int:
        return math.ceil(self.part * n)

    def nbytes(self, n: int) -> int:
        whole, rest = divmod(n, self.block)
        return whole * self._size(self.block) + (self._size(rest) if rest else 0)

    def _size(self, n: int) -> int:
        return -(-(4 + 3 * self._kept(n)) // 4) * 4

    def encode(self, values: Array, data: Array) -> None:
        if _run("encode", 0, values, data, *self._both(len(values))):
            return
        whole = len(values) // self.block * self.block
        if whole:
            rows = data[: self.nbytes(whole)].reshape(-1, self._size(self.block))
            self._encode(values[:whole].reshape(-1, self.block), rows)
        if whole < len(values):
            self._encode(values[whole:].reshape(1, -1), data[self.nbytes(whole) :].reshape(1, -1))

    def _encode(self, rows: Array, data: Array) -> None:
        kept = self._kept(rows.shape[1])
        magnitudes = np.where(np.isfinite(rows), np.abs(rows), np.inf)
        least = np.partition(magnitudes, rows.shape[1] - kept, axis=1)[:, rows.shape[1] - kept, None]
        chosen = magnitudes > least
        ties = magnitudes == least
        room = kept - chosen.sum(axis=1, keepdims=True)
        chosen |= ties & (np.cumsum(ties, axis=1) <= room)
        places = np.nonzero(chosen)[1].reshape(-1, kept)
        values = np.take_along_axis(rows, places, axis=1)
        scales = _scales(_largest(values), 127)
        data[:, :4] = scales.astype("<f4").reshape(-1, 1).view("u1")
        data[:, 4 : 4 + 2 * kept] = places.astype("<u2").view("u1")
        data[:, 4 + 2 * kept : 4 + 3 * kept] = _levels(values, scales, 127, _NOT_FINITE_8).view("u1")
        data[:, 4 + 3 * kept :] = 0

    def decode(self, data: Array, out: Array) -> None:
        if _run("decode", 0, out, data, *self._both(len(out))):
            return
        out[:] = 0
        whole = len(out) // self.block * self.block
        if whole:
            rows = data[: self.nbytes(whole)].reshape(-1, self._size(self.block))
            self._decode(rows, out[:whole].reshape(-1, self.block))
        if whole < len(out):
            self._decode(data[self.nbytes(whole) :].reshape(1, -1), out[whole:].reshape(1, -1))

    def _decode(self, data: Array, rows: Array) -> None:
        kept = self._kept(rows.shape[1])
        scales = np.ascontiguousarray(data[:, :4]).view("<f4")[:, 0]
        places = np.ascontiguousarray(data[:, 4 : 4 + 2 * kept]).view("<u2")
        codes = np.ascontiguousarray(data[:, 4 + 2 * kept : 4 + 3 * kept]).view("i1")
        # A place outside of the block can only come from a broken sender: keep it within the block.
        places = np.minimum(places, rows.shape[1] - 1).astype(np.intp)
        np.put_along_axis(rows, places, _scaled(codes, scales, _NOT_FINITE_8, rows.dtype), axis=1)


_PLAIN: dict[str, Codec] = {
    "float16": Float16(),
    "bfloat16": Truncated(),
    "int8": Blocks(8),
    "int4": Blocks(4),
    "int2": Blocks(2),
}
_TOP_K = re.compile(r"topk\(([^()]*)\)")


def codec_of(text: str) -> Codec | None:
    """Return the codec for a text such as ``int8`` or ``topk(0.01)``; None for ``none``."""
    name = text.strip().lower()
    if name == NONE:
        return None
    if name in _PLAIN:
        return _PLAIN[name]
    found = _TOP_K.fullmatch(name)
    if found is None:
        raise ConfigurationError(
            f"got {text!r} as the compression between hosts: it must be {NONE}, "
            f"{', '.join(_PLAIN)} or topk(PART), such as topk(0.01)"
        )
    try:
        part = float(found[1])
    except ValueError:
        part = math.nan
    if not 0 < part <= 0.5:
        raise ConfigurationError(
            f"got {text!r} as the compression between hosts: the part of the elements to send "
            "must be more than 0 and at most 0.5, such as topk(0.01)"
        )
    return TopK(part)


class ErrorFeedback:
    """The residual of an array that is averaged repeatedly: each average includes the earlier rest.

    Make one for each array and pass it to each all-reduce of that array. It restarts at zero if the
    shape, the dtype or the operation changes. It uses the memory of the array on each host if
    `platoon launch --hosts-compression` is used, otherwise none. Arrays of up to 64 KiB are sent
    unchanged, and so are arrays on GPUs other than float32. ``latest`` is the residual of this
    rank, shape (n,), for the parts that it exchanges with other hosts. Seide et al., 1-bit
    stochastic gradient descent, Interspeech 2014; Karimireddy et al., arXiv 1901.09847.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self.latest: Any = np.zeros(0, np.float32)

    def residual(self, key: Any, size: int, dtype: Any) -> Array:
        """Return this rank's residual for a key, shape (size,); zeros if the key is new."""
        found: Array = self.kept(key, lambda: np.zeros(size, dtype))
        return found

    def kept(self, key: Any, zeros: Callable[[], Any]) -> Any:
        """Return the value for a key; the result of ``zeros`` if the key is new."""
        if key != self._key:
            self._key, self.latest = key, zeros()
        return self.latest
