"""The memory of a shared data set: a segment that the first worker fills, process memory, or a file.

A segment is valid once its header has the word "ready", which the worker that creates it writes last.
That worker holds a lock until then; the kernel releases the lock if the worker dies, and the next
worker starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import BackendUnavailableError, CollectiveTimeoutError, ConfigurationError
from platoon_base.job.files import JobFiles
from platoon_base.layout import array_on
from platoon_base.shm.schema import PAGE, Part, Schema
from platoon_base.shm.segments import Segment, abandoned, in_use
from platoon_base.system.own_files import disown, open_own, own
from platoon_base.system.process import awake
from platoon_base.timeouts import SHORT_POLL_S

Fill = Callable[[Array], None]


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


_FORM_BYTES = 3900

# The rows begin at the second page; their memory grows.
_DATA = Schema(
    "a data set",
    b"PLTNDATA",
    2,
    [("ready", "u4"), ("rows", "i8"), ("form", f"S{_FORM_BYTES}")],
    lambda header, layout: [Part("data", "u1", (0,), PAGE)],
    ConfigurationError,
)


class LocalMemory:
    def __init__(self, form: Form, fill: Fill) -> None:
        self.form = form
        self.made_here = True
        self._rows: Array | None = np.zeros((form.rows, *form.row_shape), form.dtype)
        fill(self._rows)

    def rows(self) -> Array:
        return _read_only(self._open())

    def resize(self, rows: int, timeout_s: float) -> None:
        """Change the number of rows; new ones are zeros."""
        before = self._open()
        self._rows = np.zeros((rows, *self.form.row_shape), self.form.dtype)
        kept = min(rows, len(before))
        self._rows[:kept] = before[:kept]

    def writing(self, timeout_s: float) -> contextlib.AbstractContextManager[Array]:
        """Yield all rows to write to, to one worker at a time."""
        return contextlib.nullcontext(self._open())

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
        self.header: Any = _header_of(segment)
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
        self._mapped: _Mapped | None = _Mapped(segment)
        rows, row_shape, *rest = json.loads(self._mapped.header["form"].item())
        self.form = Form(rows, tuple(row_shape), *rest)

    def rows(self) -> Array:
        mapped = self._mapped
        if mapped is None:
            raise closed_error()
        count = int(mapped.header["rows"])
        if mapped.rows is None or len(mapped.rows) != count:
            if PAGE + self.form.size_bytes(count) > len(mapped.segment.buffer):
                mapped.close()  # Arrays on the shorter mapping keep it.
                self._mapped = mapped = _Mapped(Segment.attach(self._segment_name, writable=False))
            mapped.rows = _rows_on(mapped.segment, self.form, count)
        return mapped.rows

    def resize(self, rows: int, timeout_s: float) -> None:
        """Change the number of rows; memory never shrinks, since others may have arrays on it."""
        with self._locked(timeout_s), Segment.attach(self._segment_name) as segment:
            header = _header_of(segment)
            before = int(header["rows"])
            segment.grow(PAGE + self.form.size_bytes(rows))
            if rows > before:
                with Segment.attach(self._segment_name) as longer:
                    _rows_on(longer, self.form, rows)[before:] = np.zeros((), self.form.dtype)
            header["rows"] = rows

    @contextlib.contextmanager
    def writing(self, timeout_s: float) -> Iterator[Array]:
        with self._locked(timeout_s), Segment.attach(self._segment_name) as segment:
            yield _rows_on(segment, self.form, int(_header_of(segment)["rows"]))

    def remove(self) -> None:
        """Remove the name, so that no worker can attach any more."""
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
        with contextlib.suppress(ConfigurationError):
            if _header_of(segment)["ready"]:
                return segment
        segment.close()
        return None

    def _make(self, form: Form, fill: Fill) -> None:
        text = json.dumps(form).encode()
        if len(text) > _FORM_BYTES:
            raise ConfigurationError(f"got rows of {len(form.row_shape)} dimensions, which is too many")
        made = _DATA.create(self._segment_name, more=form.size_bytes(form.rows), rows=form.rows, form=text)
        with made.segment as segment:
            try:
                fill(_rows_on(segment, form, form.rows))
                made.header["ready"] = 1
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


def _header_of(segment: Segment) -> Any:
    return _DATA.read(segment.buffer, name=segment.name).header


def _rows_on(segment: Segment, form: Form, rows: int) -> Array:
    found: Array = array_on(segment.buffer, (rows, *form.row_shape), form.dtype, PAGE)
    return found


def _read_only(array: Array) -> Array:
    view = array[:]
    view.flags.writeable = False
    return view


Memory = Union[LocalMemory, JobMemory]


class FileMemory(LocalMemory):
    """The rows of a file of the user's, which the kernel reads on use, for all processes that map it."""

    def __init__(self, path: str | os.PathLike[str], dataset: str | None) -> None:
        self._path = path
        self.made_here = False
        self._rows = _map_numpy(path) if dataset is None else _map_hdf5(path, dataset)
        self.form = Form.of(self._rows, "")

    def resize(self, rows: int, timeout_s: float) -> None:
        raise self._refusal("resized")

    def writing(self, timeout_s: float) -> contextlib.AbstractContextManager[Array]:
        raise self._refusal("written to")

    def _refusal(self, done: str) -> ConfigurationError:
        return ConfigurationError(
            f"data mapped from the file {os.fspath(self._path)} cannot be {done}: copy them with "
            "SharedData(data.array, name)"
        )


def _map_numpy(path: str | os.PathLike[str]) -> Array:
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"{os.fspath(path)} cannot be mapped into memory as a NumPy file: {exc}") from exc
    if not isinstance(found, np.ndarray):  # An .npz file is an archive.
        found.close()
        raise ConfigurationError(
            f"{os.fspath(path)} is an archive of arrays, which cannot be mapped: save each with numpy.save, or copy it "
            "into shared memory with SharedData(lambda: numpy.load(path)[key])"
        )
    if not found.flags.c_contiguous:
        raise ConfigurationError(
            f"{os.fspath(path)} holds an array in Fortran order, whose rows are not contiguous: "
            "save numpy.ascontiguousarray(array)"
        )
    return found.view(np.ndarray)


def _map_hdf5(path: str | os.PathLike[str], dataset: str) -> Array:
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as exc:
        raise BackendUnavailableError("HDF5 files need h5py: pip install h5py") from exc
    try:
        with h5py.File(path, "r") as file:
            found = file[dataset]
            shape, dtype, offset = found.shape, found.dtype, found.id.get_offset()
            plain = found.chunks is None and found.external is None and offset is not None
    except (OSError, KeyError, AttributeError) as exc:
        raise ConfigurationError(f"{os.fspath(path)} has no readable data set {dataset!r}: {exc}") from exc
    if dtype.hasobject:
        raise ConfigurationError(
            f"the data set {dataset!r} of {os.fspath(path)} has dtype object, such as strings of "
            "variable length, which are not rows of numbers"
        )
    if not plain:
        raise ConfigurationError(
            f"the data set {dataset!r} of {os.fspath(path)} is chunked, compressed, empty or in another file, so it "
            "cannot be mapped: copy it into shared memory with SharedData(lambda: h5py.File(path)[dataset])"
        )
    rows = np.memmap(path, dtype, mode="r", offset=offset, shape=shape)
    return rows.view(np.ndarray)
