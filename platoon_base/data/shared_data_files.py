"""Data sets in memory-mapped files: NumPy's, and contiguous ones of HDF5."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

import numpy as np

from platoon_base.data.shared_data_memory import Form, closed_error
from platoon_base.errors import BackendUnavailableError, ConfigurationError

__all__ = ["FileMemory"]

Array = np.ndarray[Any, Any]


class FileMemory:
    """The rows of a file, which the kernel reads on use, shared by all processes that map it."""

    def __init__(self, path: str | os.PathLike[str], dataset: str | None) -> None:
        self._path = path
        self.made_here = False
        self._rows: Array | None = _map_numpy(path) if dataset is None else _map_hdf5(path, dataset)
        self.form = Form.of(self._rows, "")

    def rows(self) -> Array:
        if self._rows is None:
            raise closed_error()
        return self._rows

    def resize(self, rows: int, timeout_s: float) -> None:
        raise self._refusal("resized")

    def writing(self, timeout_s: float) -> contextlib.AbstractContextManager[Array]:
        raise self._refusal("written to")

    def remove(self) -> None:
        """Do nothing: the user owns the file."""

    def close(self) -> None:
        self._rows = None

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
