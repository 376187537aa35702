"""Arrays in shared memory for the workers of a host, identified by the number of the call."""

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
        number, dtype = len(self._segments), np.dtype(array.dtype)
        self._worker.advanced.require_same(
            f"the array of shared() call {number}", f"{dtype}{list(array.shape)}", _REMEDY
        )
        name = files.data(f"shared-array-{number}")
        size_bytes = max(1, int(np.prod(array.shape, dtype=np.int64)) * dtype.itemsize)
        self._worker.lock()  # Otherwise two workers could create it.
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
        for segment in self._segments:
            segment.close()
