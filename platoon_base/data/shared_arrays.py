"""Arrays in shared memory that the workers of a host have in common, by the number of the call that asks for one."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import files_of
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on
from platoon_base.worker.handle import Worker

__all__ = ["SharedArrays"]

_REMEDY = "All workers call Worker.shared for the same arrays in the same order"


class SharedArrays:
    """The arrays of one worker.

    Parameters
    ----------
    worker : Worker
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._segments: list[Segment] = []

    def like(self, array: Any) -> np.ndarray[Any, Any]:
        """Return zeros of an array's shape and dtype; the k-th call of each worker gives the same memory.

        Raises
        ------
        ConfigurationError
            If the k-th call of another worker was for another shape or dtype, or this is no array.
        """
        if not (hasattr(array, "dtype") and hasattr(array, "shape")):
            raise ConfigurationError(
                f"got {type(array).__name__} to share: pass an array of the shape and dtype that the memory is to have"
            )
        files = files_of(self._worker)
        if files is None:
            raise ConfigurationError("a single-worker job has no other worker to share an array with: use numpy.zeros")
        number, dtype = len(self._segments), np.dtype(array.dtype)
        self._worker.advanced.require_same(
            f"the array of shared() call {number}", f"{dtype}{list(array.shape)}", _REMEDY
        )
        name = files.data(f"shared-array-{number}")
        size_bytes = max(1, int(np.prod(array.shape, dtype=np.int64)) * dtype.itemsize)
        self._worker.lock()  # or two workers would create it
        try:
            try:
                segment = Segment.attach(name)
            except ConfigurationError:
                segment = Segment.create(name, size_bytes)
        finally:
            self._worker.unlock()
        self._segments.append(segment)
        found: np.ndarray[Any, Any] = array_on(segment.buffer, tuple(array.shape), dtype)
        return found

    def close(self) -> None:
        """Release the memory; arrays that the script has keep it."""
        for segment in self._segments:
            segment.close()
