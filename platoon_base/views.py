"""Arrays on memory that is unmapped later, such as shared memory, and arrays that are more than their memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError

__all__ = ["array_on", "require_plain"]


def require_plain(array: Any, name: str) -> None:
    """Raise `ConfigurationError` for a subclass of ndarray whose assignment is more than a copy: a masked array.

    Matrices, memory maps and others that assign as an ndarray does are taken.
    """
    if isinstance(array, np.ndarray) and type(array).__setitem__ is not np.ndarray.__setitem__:
        raise ConfigurationError(
            f"got a {type(array).__name__} as {name}: workers exchange values alone, so its mask, unit or the like "
            "would be lost; pass numpy.asarray(...) of it (a masked array's .filled(0)), and the rest separately"
        )


def array_on(buffer: Any, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
    """Return an array that lies on a buffer, which cannot be unmapped or resized for as long as the array lives.

    An array made by ``numpy.ndarray(..., buffer=mmap)`` does not keep the memory mapped: after ``mmap.close()``
    reading the array ends the process.

    Parameters
    ----------
    buffer : writable buffer
    shape : tuple of int
    dtype : dtype
    offset : int
        Bytes from the start of the buffer to the first element.
    """
    # numpy.frombuffer holds a memoryview, the export that mmap.close() counts; numpy.ndarray goes past that of others.
    return np.ndarray(shape, dtype, np.frombuffer(buffer, np.uint8), offset)
