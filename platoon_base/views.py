"""Arrays on memory that may be unmapped, and a check that refuses subclasses of ndarray."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError

__all__ = ["array_on", "require_plain"]


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
