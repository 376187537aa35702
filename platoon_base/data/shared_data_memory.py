"""The memory of a shared data set: a segment that the first worker fills, or process memory.

A segment begins with a page that describes the rows. It is valid once the page has the word
"ready", which the worker that creates the segment writes last. That worker holds a lock until then;
the kernel releases the lock if the worker dies, and the next worker starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment, abandoned, in_use
from platoon_base.system.awake import awake
from platoon_base.system.own_files import open_own
from platoon_base.system.own_locks import disown, own
from platoon_base.timeouts import SHORT_POLL_S
from platoon_base.views import array_on

__all__ = ["Form", "JobMemory", "LocalMemory", "Memory"]

Array = np.ndarray[Any, Any]
Fill = Callable[[Array], None]

_MAGIC = b"PLTNDATA"
_VERSION = 1
_PAGE = 4096
_HEADER = np.dtype([("magic", "S8"), ("version", "u4"), ("ready", "u4"), ("rows", "i8"), ("text", "u4")])


class Form(NamedTuple):
    """The shape, dtype (``numpy.dtype(...).str``) and fingerprint of a data set at creation."""

    rows: int
    row_shape: tuple[int, ...]
    dtype: str
    fingerprint: str

    @classmethod
    def of(cls, data: Any, fingerprint: str) -> Form:
        """Return the form of an array, or of a data set such as those of h5py."""
        dtype = np.dtype(data.dtype)
        if dtype.hasobject or dtype.names is not None or not len(data.shape):
            raise ConfigurationError(
                f"got data of shape {tuple(data.shape)} and dtype {dtype}: only rows of numbers "
                "can be shared; pass an array with a first axis and without Python objects, and "
                "each field of a structured array separately"
            )
        shape = tuple(int(n) for n in data.shape)
        return cls(shape[0], shape[1:], dtype.str, fingerprint)

    def size_bytes(self, rows: int) -> int:
        return rows * int(np.prod(self.row_shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.rows} rows of {np.dtype(self.dtype)} {self.row_shape}"


class Memory(Protocol):
    form: Form
    made_here: bool

    def rows(self) -> Array: ...

    def resize(self, rows: int, timeout_s: float) -> None:
        """Change the number of rows; new ones are zeros."""
        ...

    def writing(self, timeout_s: float) -> contextlib.AbstractContextManager[Array]:
        """Yield all rows to write to, to one worker at a time."""
        ...

    def remove(self) -> None:
        """Remove the name, so that no worker can attach any more."""
        ...

    def close(self) -> None: ...


class LocalMemory:
    def __init__(self, form: Form, fill: Fill) -> None:
        self.form = form
        self.made_here = True
        self._rows: Array | None = np.zeros((form.rows, *form.row_shape), form.dtype)
        fill(self._rows)

    def rows(self) -> Array:
        return _read_only(self._open())

    def resize(self, rows: int, timeout_s: float) -> None:
        before = self._open()
        self._rows = np.zeros((rows, *self.form.row_shape), self.form.dtype)
        kept = min(rows, len(before))
        self._rows[:kept] = before[:kept]

    @contextlib.contextmanager
    def writing(self, timeout_s: float) -> Iterator[Array]:
        yield self._open()

    def remove(self) -> None:
        """Do nothing: there is no name."""

    def close(self) -> None:
        self._rows = None

    def _open(self) -> Array:
        if self._rows is None:
            raise closed_error()
        return self._rows


class _Mapped:
    """An open segment, closed with this object at the latest."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.header: Any = array_on(segment.buffer, (), _HEADER)
        self.rows: Array | None = None
        self._finalizer = weakref.finalize(self, segment.close)

    def close(self) -> None:
        self.header = self.rows = None
        self._finalizer()


class JobMemory:
    """The segment of a data set of a job; the worker that creates it calls ``load``."""

    def __init__(self, files: JobFiles, name: str, load: Callable[[], tuple[Form, Fill]], timeout_s: float) -> None:
        self.name = name
        self._segment_name = files.data(name)
        self._lock_path = Path(files.folder, f"data-{name}.lock")
        self.made_here = False
        with self._locked(timeout_s):
            segment = self._attach()
            if segment is None:
                self._make(*load())
                self.made_here = True
                segment = Segment.attach(self._segment_name, writable=False)
        self.form = _form_in(segment)
        self._mapped: _Mapped | None = _Mapped(segment)

    def rows(self) -> Array:
        mapped = self._mapped
        if mapped is None:
            raise closed_error()
        count = int(mapped.header["rows"])
        if mapped.rows is None or len(mapped.rows) != count:
            if _PAGE + self.form.size_bytes(count) > len(mapped.segment.buffer):
                mapped.close()  # Arrays on the shorter mapping keep it.
                self._mapped = mapped = _Mapped(Segment.attach(self._segment_name, writable=False))
            mapped.rows = _rows_on(mapped.segment, self.form, count)
        return mapped.rows

    def resize(self, rows: int, timeout_s: float) -> None:
        """Change the number of rows; memory never shrinks, since others may have arrays on it."""
        with self._locked(timeout_s), Segment.attach(self._segment_name) as segment:
            header: Any = array_on(segment.buffer, (), _HEADER)
            before = int(header["rows"])
            segment.grow(_PAGE + self.form.size_bytes(rows))
            if rows > before:
                with Segment.attach(self._segment_name) as longer:
                    _rows_on(longer, self.form, rows)[before:] = np.zeros((), self.form.dtype)
            header["rows"] = rows

    @contextlib.contextmanager
    def writing(self, timeout_s: float) -> Iterator[Array]:
        with self._locked(timeout_s), Segment.attach(self._segment_name) as segment:
            header: Any = array_on(segment.buffer, (), _HEADER)
            yield _rows_on(segment, self.form, int(header["rows"]))

    def remove(self) -> None:
        Segment.unlink(self._segment_name)

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def _attach(self) -> Segment | None:
        """Open a filled segment; None if there is none, or its creator died before the end."""
        if not in_use(self._segment_name) and not abandoned(self._segment_name):
            return None
        segment = Segment.attach(self._segment_name, writable=False)
        if len(segment.buffer) >= _PAGE:
            header: Any = array_on(segment.buffer, (), _HEADER)
            if header["magic"] == _MAGIC and header["version"] == _VERSION and header["ready"]:
                return segment
            del header
        segment.close()
        return None

    def _make(self, form: Form, fill: Fill) -> None:
        text = json.dumps(form).encode()
        if len(text) > _PAGE - _HEADER.itemsize:
            raise ConfigurationError(f"got rows of {len(form.row_shape)} dimensions, which is too many")
        with Segment.create(self._segment_name, _PAGE + form.size_bytes(form.rows)) as segment:
            try:
                header: Any = array_on(segment.buffer, (), _HEADER)
                header["magic"], header["version"] = _MAGIC, _VERSION
                header["rows"], header["text"] = form.rows, len(text)
                array_on(segment.buffer, (len(text),), np.uint8, _HEADER.itemsize)[:] = np.frombuffer(text, np.uint8)
                fill(_rows_on(segment, form, form.rows))
                header["ready"] = 1
            except BaseException:
                Segment.unlink(self._segment_name)
                raise

    @contextlib.contextmanager
    def _locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock of this data set, for the processes of the job and threads of this one."""
        deadline = awake() + timeout_s
        fd = _open_lock(self._lock_path)
        own(fd)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if awake() > deadline:
                        raise CollectiveTimeoutError(
                            "another worker has been creating or changing the shared data "
                            f"{self.name!r} for {timeout_s:g} s: pass a longer timeout_s, or load the "
                            "data before"
                        ) from None
                    time.sleep(SHORT_POLL_S)
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # A child forked by C code may have the file open too.
            disown(fd)
            os.close(fd)


def _open_lock(path: Path) -> int:
    """Open the lock file in the job's folder, which is private to this user."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        return open_own(path, stat.S_IFREG)
    except FileNotFoundError as exc:
        raise ConfigurationError(f"the job's folder {path.parent} no longer exists: the job has ended") from exc


def closed_error() -> ConfigurationError:
    return ConfigurationError("these shared data are closed: they cannot be read after close()")


def _form_in(segment: Segment) -> Form:
    header: Any = array_on(segment.buffer, (), _HEADER)
    text = array_on(segment.buffer, (int(header["text"]),), np.uint8, _HEADER.itemsize).tobytes()
    rows, row_shape, dtype, fingerprint = json.loads(text)
    return Form(rows, tuple(row_shape), dtype, fingerprint)


def _rows_on(segment: Segment, form: Form, rows: int) -> Array:
    found: Array = array_on(segment.buffer, (rows, *form.row_shape), form.dtype, _PAGE)
    return found


def _read_only(array: Array) -> Array:
    view = array[:]
    view.flags.writeable = False
    return view
