"""Data sets and arrays that are once in a host's memory, for all workers of a job."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from typing import Any

import numpy as np

from platoon_base.data.excerpt import excerpt, part_of
from platoon_base.data.shared_data_memory import FileMemory, Fill, Form, JobMemory, LocalMemory, Memory
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.job.joining import connect, files_of
from platoon_base.layout import require_plain
from platoon_base.shm.schema import Part, Schema
from platoon_base.shm.segments import Segment
from platoon_base.system.limits import available_cores
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker

_BLOCK_BYTES = 1 << 26  # Data that are not in memory are read in blocks of this size.
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_LARGE_PER_THREAD = 4  # More threads do not fill the memory bus faster.

# The numbers of the next data sets without a name.
_counts: weakref.WeakKeyDictionary[Worker, int] = weakref.WeakKeyDictionary()


class SharedData:
    """Rows in shared memory, the same memory for all workers of a job on this host.

    The first worker copies the data into shared memory, and the others attach: N workers hold the
    data once. The array is read-only, except within `writing`. The memory is freed when the job
    ends, however it ends. In a single-worker job the data are copied into this process's memory.

    Parameters
    ----------
    data : array, data set of h5py, list, or callable
        The same on every worker, with rows along the first axis. A callable without arguments
        returns the data; only the first worker calls it, so they are loaded once.
    name : str, optional
        The name within the job: letters, digits, "_", ".", "-". By default data sets are numbered,
        so all workers must create them in the same order.
    worker : Worker, optional
        The default is ``connect()``.
    timeout_s : float
        Bound on the wait for another worker that is filling the memory.

    Attributes
    ----------
    name : str
    made_here : bool
        Whether this worker was the first.
    shape : tuple of int
    dtype : numpy.dtype

    Raises
    ------
    BackendUnavailableError
        On every worker, if the data do not fit into shared memory; nothing has been written then.
    ConfigurationError
        If another worker has shared other data under this name, or the data have no rows of
        numbers.
    CollectiveTimeoutError
        If another worker was filling the memory for ``timeout_s``.

    Examples
    --------
    >>> images = SharedData(lambda: numpy.load("images.npz")["train"])              # doctest: +SKIP
    >>> batch = images.excerpt([5, 3, 8])                                           # doctest: +SKIP
    """

    def __init__(
        self,
        data: Any,
        name: str | None = None,
        *,
        worker: Worker | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        worker = connect() if worker is None else worker
        self.name = _next_name(worker) if name is None else name
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"got name={self.name!r}, which becomes part of a file name: use up to 64 "
                "letters, digits, '_', '.', '-'"
            )
        given = None if callable(data) else _as_array(data)
        self._take(_memory_of(worker, self.name, data if given is None else given, timeout_s), worker)
        if given is not None and Form.of(given, fingerprint(given)) != self._memory.form:
            found = self._memory.form
            self.close()
            raise ConfigurationError(
                f"got {Form.of(given, '')} for the shared data {self.name!r}, and another worker "
                f"has shared {found} under this name, or other values: load the same data in the "
                "same order on every worker, or use a different name for each data set"
            )

    @classmethod
    def empty(
        cls,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        name: str | None = None,
        *,
        worker: Worker | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> SharedData:
        """Share rows of zeros, for `writing`; arguments and errors as those of the class."""
        try:
            zero = np.broadcast_to(np.zeros((), dtype), shape)
        except (ValueError, TypeError, OverflowError) as exc:
            raise ConfigurationError(
                f"got shape={shape!r} and dtype={dtype!r} for shared data ({exc}): pass the "
                "number of rows and the shape of a row, all of them 0 or more, and a numeric "
                "dtype"
            ) from exc
        return cls(zero, name, worker=worker, timeout_s=timeout_s)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], dataset: str | None = None, *, worker: Worker | None = None
    ) -> SharedData:
        """Map a file into memory without a copy: the workers share the pages that the kernel reads.

        Parameters
        ----------
        path : path
            A NumPy file (``.npy``) or an HDF5 file.
        dataset : str, optional
            The data set of an HDF5 file, contiguous and not compressed. Pass others as
            ``SharedData(file[dataset])``, which copies them.

        Raises
        ------
        ConfigurationError
            If the file cannot be mapped.
        """
        self = cls.__new__(cls)
        self.name = os.fspath(path) if dataset is None else f"{os.fspath(path)}:{dataset}"
        self._take(FileMemory(path, dataset), connect() if worker is None else worker)
        return self

    def _take(self, memory: Memory, worker: Worker) -> None:
        self._memory = memory
        self._rank, self._size = worker.global_rank, worker.global_size
        self.made_here = memory.made_here
        self.dtype = np.dtype(memory.form.dtype)
        cores = available_cores()
        self._threads = max(1, min(cores // max(1, worker.local_size), _LARGE_PER_THREAD))

    @property
    def array(self) -> Array:
        """All rows, read-only. After a `resize` it is another array; the old one stays valid."""
        return self._memory.rows()

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, and the shape of a row."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._memory.form.row_shape) + 1

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array, dtype) if not copy else np.array(self.array, dtype)

    def excerpt(self, indices: Any, out: Array | None = None, *, threads: int | None = None) -> Array:
        """Return the rows of these numbers; see `platoon_base.data.excerpt`.

        ``threads`` is by default this worker's part of the cores, at most 4.
        """
        return excerpt(self.array, indices, out, threads=self._threads if threads is None else threads)

    def excerpt_part(self, indices: Any, out: Array | None = None) -> Array:
        """Return this worker's rows of a list: of N almost equal parts, the one of its rank."""
        return self.excerpt(part_of(indices, len(self), self._rank, self._size), out)

    def resize(self, rows: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Change the number of rows, for all workers; new rows are zeros.

        One worker calls it, and then all call `Worker.barrier`. The others see the change at their
        next use of the data. Earlier arrays stay valid, and keep the rows that are not cut off;
        rows that are cut off become zeros in those arrays too, once the data grow again. It raises
        `BackendUnavailableError`, without a change, if there is not enough shared memory.
        """
        if rows < 0:
            raise ConfigurationError(f"got rows={rows!r}: a number of rows cannot be negative")
        self._memory.resize(rows, timeout_s)

    def writing(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> contextlib.AbstractContextManager[Array]:
        """Yield all rows, writable within the ``with`` block by this worker only.

        Readers do not wait, so call `Worker.barrier` on all workers before and after.
        """
        return self._memory.writing(timeout_s)

    def remove(self) -> None:
        """Remove the name; the memory is freed when the last worker has closed it."""
        self._memory.remove()

    def close(self) -> None:
        """Release the memory once no array refers to it; a second call does nothing."""
        self._memory.close()

    def __enter__(self) -> SharedData:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SharedData({self.name!r}, {self._memory.form})"


def _next_name(worker: Worker) -> str:
    _counts[worker] = count = _counts.get(worker, 0) + 1
    return str(count)


def _as_array(data: Any) -> Any:
    if isinstance(data, SharedData):
        return data.array
    return data if hasattr(data, "shape") and hasattr(data, "dtype") else np.asarray(data)


def _memory_of(worker: Worker, name: str, data: Any, timeout_s: float) -> Memory:
    def load() -> tuple[Form, Fill]:
        source = _as_array(data()) if callable(data) else data
        require_plain(source, "shared data")
        return Form.of(source, fingerprint(source)), lambda rows: _copy(source, rows)

    files = files_of(worker)
    return LocalMemory(*load()) if files is None else JobMemory(files, name, load, timeout_s)


def _copy(source: Any, rows: Array) -> None:
    """Copy data, in blocks if they are not in memory: only one block is held twice."""
    if isinstance(source, np.ndarray):
        np.copyto(rows, source)
        return
    step = max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        rows[start : start + step] = source[start : start + step]


_ARRAY = Schema("a shared array", b"PLTNARRY", 1, [], lambda header, values: [values])
_REMEDY = "All workers call Worker.shared for the same arrays in the same order"


class SharedArrays:
    """Arrays in shared memory for the workers of a host, identified by the number of the call."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._segments: list[Segment] = []

    def like(self, array: Any) -> np.ndarray[Any, Any]:
        """Return zeros like an array; the k-th call of each worker returns the same memory."""
        if not (hasattr(array, "dtype") and hasattr(array, "shape")):
            raise ConfigurationError(
                f"got {type(array).__name__} to share: pass an array with the shape and dtype of the memory"
            )
        files = files_of(self._worker)
        if files is None:
            raise ConfigurationError(
                "a job with a single worker has no other worker to share an array with: use numpy.zeros"
            )
        number, values = len(self._segments), Part("values", np.dtype(array.dtype), tuple(array.shape))
        self._worker.advanced.require_same(
            f"the array of shared() call {number}", f"{values.dtype}{list(values.shape)}", _REMEDY
        )
        name = files.data(f"shared-array-{number}")
        self._worker.lock()  # Otherwise two workers could create it.
        try:
            try:
                memory = _ARRAY.attach(name, values)
            except ConfigurationError:
                memory = _ARRAY.create(name, values)
        finally:
            self._worker.unlock()
        self._segments.append(memory.segment)
        found: np.ndarray[Any, Any] = memory.values
        return found

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
