"""Arrays on memory that is unmapped later, such as shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["array_on"]


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
