"""Arrays in shared memory for the workers of a host, identified by the number of the call."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import files_of
from platoon_base.shm.schema import Part, Schema
from platoon_base.shm.segments import Segment
from platoon_base.worker.handle import Worker

__all__ = ["SharedArrays"]

_ARRAY = Schema("a shared array", b"PLTNARRY", 1, [], lambda header, values: [values])
_REMEDY = "All workers call Worker.shared for the same arrays in the same order"


class SharedArrays:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._segments: list[Segment] = []

    def like(self, array: Any) -> np.ndarray[Any, Any]:
        """Return zeros like an array; the k-th call of each worker returns the same memory."""
        if not (hasattr(array, "dtype") and hasattr(array, "shape")):
            raise ConfigurationError(
                f"got {type(array).__name__} to share: pass an array of the shape and dtype that the memory is to have"
            )
        files = files_of(self._worker)
        if files is None:
            raise ConfigurationError("a single-worker job has no other worker to share an array with: use numpy.zeros")
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
