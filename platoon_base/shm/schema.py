"""Declarations of shared memory: the header of each kind of segment, its parts, and one check of both.

A kind of segment is one `Schema`. Its memory begins with a header: a magic, a version, a digest of all
names, dtypes and sizes, and fields of the kind. Named parts follow; a `Layout` is a dtype too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from platoon_base.errors import LayoutMismatchError, PlatoonError
from platoon_base.layout import ALIGNMENT, Layout, array_on
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.process import awake

PAGE = 4096
_DIGEST_BYTES = 16
_TABLE_LOCK = 0  # The lock on this byte guards the number of blocks, see `Growing`.
_PAUSE_S = 1e-3


class Part(NamedTuple):
    """An array at an aligned offset; with a `Layout` or `Parts` as dtype, the views of each of ``shape``."""

    name: str
    dtype: Any
    shape: tuple[int, ...] = ()
    align: int = ALIGNMENT

    @property
    def nbytes(self) -> int:
        each = self.dtype.nbytes if isinstance(self.dtype, (Layout, Parts)) else np.dtype(self.dtype).itemsize
        return int(each) * math.prod(self.shape)

    def view(self, buffer: Any, start: int) -> Any:
        if not isinstance(self.dtype, (Layout, Parts)):
            return array_on(buffer, self.shape, self.dtype, start)
        every = [self.dtype.views(buffer, start + i * self.dtype.nbytes) for i in range(math.prod(self.shape))]
        return every if self.shape else every[0]

    def described(self) -> tuple[Any, ...]:
        several = isinstance(self.dtype, (Layout, Parts))
        dtype = self.dtype.fingerprint if several else _fields_of(np.dtype(self.dtype))
        return self.name, dtype, self.shape, self.align


@functools.cache
def _fields_of(dtype: Any) -> str:
    """Return the text of a dtype, with the names and places of its fields."""
    places = [(name, str(field[0]), field[1]) for name, field in (dtype.fields or {}).items()]
    return repr((dtype.str, dtype.itemsize, places))


class Views(SimpleNamespace):
    """The parts of one block of memory by name, and the offset of each in ``at``."""

    at: dict[str, int]
    segment: Segment  # `Schema.create` and `attach` set it.
    header: Any  # A `Schema` sets it.


class Word:
    """A field of the record ``_header`` of an object, as an attribute that is an int."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, instance: Any, owner: Any = None) -> int:
        return int(instance._header[self._field])

    def __set__(self, instance: Any, value: int) -> None:
        instance._header[self._field] = value


class Parts:
    """Places of named parts in a block of memory."""

    @classmethod
    @functools.lru_cache(maxsize=64)
    def placed(cls, *parts: Part) -> Parts:
        """Return the places of these parts; those of recent ones are kept, with their fingerprint."""
        return cls(*parts)

    def __init__(self, *parts: Part) -> None:
        self._parts, self.at, end = parts, {}, 0
        for part in parts:
            self.at[part.name] = -(-end // part.align) * part.align
            end = self.at[part.name] + part.nbytes
        self.nbytes = -(-end // ALIGNMENT) * ALIGNMENT

    def views(self, buffer: Any, start: int = 0) -> Views:
        at = {name: start + offset for name, offset in self.at.items()}
        return Views(at=at, **{part.name: part.view(buffer, at[part.name]) for part in self._parts})

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """Bytes that differ whenever the name, dtype, shape or place of a part differs."""
        text = repr([part.described() for part in self._parts])
        return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


class Growing:
    """Equal blocks in the last part of a segment, ``slots``; their number is a field of its header.

    `add` extends the memory, and other processes map it when they need it.
    """

    def __init__(self, memory: Views, each: Parts) -> None:
        self.segments = [memory.segment]
        self._header, self._first, self._each = memory.header, memory.at["slots"], each

    def __len__(self) -> int:
        return int(self._header["slots"])

    def _start_of(self, index: int) -> int:
        return self._first + index * self._each.nbytes

    def views(self, index: int) -> Views:
        """Return one block; raises `ConfigurationError` if it is new and the name was removed."""
        if len(self.segments[-1].buffer) < self._start_of(index + 1):
            self.segments.append(Segment.attach(self.segments[0].name))
        return self._each.views(self.segments[-1].buffer, self._start_of(index))

    def add(self, prepare: Callable[[Views], object] = lambda views: None) -> None:
        """Add a block of zeros; ``prepare`` writes its first values. The caller holds the lock."""
        index = len(self)
        self.segments[0].grow(self._start_of(index + 1))
        prepare(self.views(index))
        self._header["slots"] = index + 1

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[bool]:
        """Lock the number of blocks within the ``with`` block; yield False on a timeout."""
        segment, deadline = self.segments[0], awake() + timeout_s
        taken = segment.try_lock(_TABLE_LOCK)
        while not taken and awake() < deadline:
            time.sleep(_PAUSE_S)
            taken = segment.try_lock(_TABLE_LOCK)
        try:
            yield taken
        finally:
            if taken:
                segment.unlock(_TABLE_LOCK)


class Schema:
    """One kind of shared memory: ``parts(header, layout)`` lists what follows a header with these values.

    ``layout`` is what creator and user both know, such as the model's. A last part of no elements has
    memory that grows. ``what`` and ``error`` are for memory of another kind, version or size.
    """

    def __init__(
        self,
        what: str,
        magic: bytes,
        version: int,
        fields: Sequence[Any],
        parts: Callable[[Any, Any], Iterable[Part]],
        error: type[PlatoonError] = LayoutMismatchError,
    ) -> None:
        common = [("magic", "S8"), ("version", "u4"), ("digest", f"V{_DIGEST_BYTES}")]
        self.header = np.dtype([*common, *fields], align=True)
        self._what, self._magic, self._version, self._parts, self._error = what, magic, version, parts, error

    def is_at(self, name: Name) -> bool:
        """Return whether a segment is of this kind, in any version."""
        with Segment.attach(name, populate=False) as segment:
            return self._is_in(segment.buffer)

    def _is_in(self, buffer: Any) -> bool:
        return bytes(buffer[: len(self._magic)]) == self._magic

    def place(self, layout: Any = None, **values: Any) -> Parts:
        """Return where everything lies for a header with these values."""
        return self._place(self.new_header(**values), layout)

    def new_header(self, **values: Any) -> Any:
        """Return a header of zeros, but for these values, in private memory."""
        header = np.zeros((), self.header)
        for name, value in values.items():
            header[name] = value
        return header

    def write(self, buffer: Any, layout: Any = None, **values: Any) -> Views:
        """Write a header with these values into memory of zeros, the magic last."""
        header = self.new_header(version=self._version, **values)
        parts = self._place(header, layout)
        views = parts.views(buffer)
        header["digest"] = np.void(parts.fingerprint)
        views.header[...] = header
        views.header["magic"] = self._magic
        return views

    def read(self, buffer: Any, layout: Any = None, name: Name = "", **expected: Any) -> Views:
        """Check the header of existing memory, and fields with an expected value."""
        if len(buffer) < self.header.itemsize or not self._is_in(buffer):
            self._refuse(name, "it holds something else")
        header = array_on(buffer, (), self.header).copy()
        if header["version"] != self._version:
            self._refuse(name, f"it has version {header['version']}, this process {self._version}")
        for field, value in expected.items():
            if header[field] != value:
                self._refuse(name, f"its {field} is {header[field]}, of this process {value}")
        parts = self._place(header, layout)
        if header["digest"].tobytes() != parts.fingerprint or len(buffer) < parts.nbytes:
            self._refuse(name, "its parts differ in name, dtype or size")
        return parts.views(buffer)

    def create(self, name: Name, layout: Any = None, more: int = 0, **values: Any) -> Views:
        """Create a segment, with ``more`` bytes for a part that grows; replace one left by a dead process."""
        segment = Segment.create(name, self.place(layout, **values).nbytes + more)
        views = self.write(segment.buffer, layout, **values)
        views.segment = segment
        return views

    def attach(self, name: Name, layout: Any = None, populate: bool = True, **expected: Any) -> Views:
        """Open a segment that another process has created; see `read`."""
        segment = Segment.attach(name, populate)
        try:
            views = self.read(segment.buffer, layout, name, **expected)
        except BaseException:
            segment.close()
            raise
        views.segment = segment
        return views

    def _place(self, header: Any, layout: Any) -> Parts:
        return Parts.placed(Part("header", self.header), *self._parts(header, layout))

    def _refuse(self, name: Name, why: str) -> NoReturn:
        raise self._error(
            f"the shared memory {name} is not {self._what} that this process can use ({why}): it was made for another "
            "model or group of workers, or by another version of this package; run the same script and the same "
            "installation on every worker"
        )
