"""Atomically written files of arrays: ``.npz`` for NumPy, with a description in ``about``."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from platoon_base.system.own_files import create_new

__all__ = ["write_arrays"]

Array = np.ndarray[Any, Any]

_FORCE_EVERY_BYTES = 1 << 26


class _SteadyFile(io.FileIO):
    """A file that is flushed at intervals, so that closing it is fast; ``count`` gets written
    bytes.
    """

    def __init__(self, path: Path, count: Callable[[int], None]) -> None:
        super().__init__(path, "wb", opener=lambda name, flags: create_new(name))
        self._count = count
        self._unforced = 0

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._count(written)
        self._unforced += written
        if self._unforced >= _FORCE_EVERY_BYTES:
            os.fdatasync(self.fileno())
            self._unforced = 0
        return written


def write_arrays(
    path: Path,
    unfinished: str,
    about: bytes,
    named: Mapping[str, Array],
    count: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Write a file under a temporary name, flush it to the disk and rename it; on errors remove it.

    The name has a random part: no other process can place a link there.
    """
    other = path.with_name(f"{unfinished}-{os.urandom(8).hex()}.npz")
    try:
        with io.BufferedWriter(_SteadyFile(other, count)) as file:
            _write(file, {"about": np.frombuffer(about, dtype=np.uint8), **named})
            file.flush()
            os.fsync(file.fileno())
        os.replace(other, path)
    except BaseException:
        with contextlib.suppress(OSError):
            other.unlink()
        raise


def _write(file: IO[bytes], named: Mapping[str, Array]) -> None:
    """Write as `numpy.savez`, but without its errors from a destructor when the disk is full."""
    import zipfile

    write_array: Any = np.lib.format.write_array  # NumPy declares no types for it.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)
