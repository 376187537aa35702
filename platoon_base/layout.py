"""Names, shapes and dtypes of a model's parameters, and the place of each in one flat buffer."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.system.text import legible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def require_plain(array: Any, name: str) -> None:
    """Raise for a subclass of ndarray that does not assign by copying, as a masked array."""
    if isinstance(array, np.ndarray) and type(array).__setitem__ is not np.ndarray.__setitem__:
        raise ConfigurationError(
            f"got a {type(array).__name__} as {name}: workers exchange only values, so its mask, "
            "unit and similar attributes would be lost; pass numpy.asarray(...) of it (a masked "
            "array's .filled(0)), and the rest separately"
        )


def array_on(buffer: Any, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
    """Return an array on a buffer, which cannot be unmapped or resized while the array lives."""
    # numpy.ndarray alone would not keep a mmap mapped: after close() reading ends the process. The
    # memoryview of numpy.frombuffer is an export, which makes mmap.close() fail instead.
    return np.ndarray(shape, dtype, np.frombuffer(buffer, np.uint8), offset)


# In bytes: a cache line, and the widest vector register.
ALIGNMENT = 64


class ParameterSpec(NamedTuple):
    """Name, shape and NumPy dtype name of one parameter; the name may be empty."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name or 'unnamed'} {self.dtype}{list(self.shape)}"


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of the flattened parameter number ``parameter``."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The specs of parameters in one flat buffer; the last ``moments`` specs are moments.

    Two workers may share a center only if their layouts have the same `fingerprint`.
    """

    specs: tuple[ParameterSpec, ...]
    moments: int = 0

    @classmethod
    def of(cls, arrays: Iterable[Any], names: Sequence[str] | None = None, moments: int = 0) -> Layout:
        """Describe arrays, or anything with ``shape`` and ``dtype``, in the given order."""
        arrays = list(arrays)
        names = [""] * len(arrays) if names is None else names
        if len(names) != len(arrays):
            raise ConfigurationError(f"got {len(names)} names for {len(arrays)} arrays: pass one for each")
        specs = tuple(
            ParameterSpec(legible(name), tuple(int(n) for n in array.shape), np.dtype(array.dtype).name)
            for name, array in zip(names, arrays)
        )
        if not specs:
            raise ConfigurationError(
                "got no parameters, so there is nothing to synchronize: pass the list of the model's parameters"
            )
        return cls(specs, moments)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each parameter in the flat buffer, in bytes, 64-byte aligned."""
        offsets, position = [], 0
        for spec in self.specs:
            offsets.append(position)
            position += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int:
        """Size of the flat buffer in bytes, a multiple of 64."""
        return self.offsets[-1] + -(-self.specs[-1].nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def num_trained(self) -> int:
        return len(self.specs) - self.moments

    @property
    def trained(self) -> Layout:
        return Layout(self.specs[: self.num_trained])

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that differ whenever number, order, names, shapes or dtypes differ."""
        text = "\n".join(f"{spec.name!r} {spec.shape} {spec.dtype}" for spec in self.specs)
        return hashlib.sha256(text.encode()).digest()

    def views(self, buffer: Any, offset: int = 0) -> list[np.ndarray[Any, Any]]:
        return [
            array_on(buffer, spec.shape, spec.dtype, offset + start) for spec, start in zip(self.specs, self.offsets)
        ]

    def empty(self) -> list[np.ndarray[Any, Any]]:
        return [np.empty(spec.shape, spec.dtype) for spec in self.specs]

    def stripes(self, stripe_bytes: int) -> list[tuple[Piece, ...]]:
        """Cut the parameters into stripes of about ``stripe_bytes``, at multiples of 64 bytes."""
        stripes: list[tuple[Piece, ...]] = []
        current: list[Piece] = []
        room = stripe_bytes
        for index, spec in enumerate(self.specs):
            itemsize = np.dtype(spec.dtype).itemsize
            start = 0
            while start < spec.size:
                fit = max(room // ALIGNMENT, 1) * ALIGNMENT // itemsize
                stop = min(spec.size, start + fit)
                current.append(Piece(index, start, stop))
                room -= (stop - start) * itemsize
                start = stop
                if room < ALIGNMENT:
                    stripes.append(tuple(current))
                    current, room = [], stripe_bytes
        if current:
            stripes.append(tuple(current))
        return stripes

    def require_same(self, other: Layout, whose: str = "the job's") -> None:
        if self.fingerprint == other.fingerprint:
            return
        if len(self.specs) != len(other.specs):
            problem = f"got {len(self.specs)} parameters, and {whose} model has {len(other.specs)}"
        else:
            index, mine, theirs = next((i, a, b) for i, (a, b) in enumerate(zip(self.specs, other.specs)) if a != b)
            problem = f"got {mine} as parameter {index}, and {whose} is {theirs}"
        raise LayoutMismatchError(
            f"{problem}: averaging different models would mix unrelated numbers; "
            "build the same model, with its parameters in the same order, on every worker"
        )

    def __len__(self) -> int:
        return len(self.specs)
