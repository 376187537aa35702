"""All-reduce of lists of arrays, in one collective call for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.collectives.flat import FlatBuffers
from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.errors import ConfigurationError
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker


class FlatAllReduce:
    """All-reduce of lists of arrays, in place; use one object for each place of the program.

    It keeps a flat buffer and copies arrays into it, except large ones on the host.
    """

    def __init__(self, worker: Worker, timeout_s: float = DEFAULT_TIMEOUT_S, compress: bool = False) -> None:
        self._worker = worker
        self._timeout_s = timeout_s
        self._buffers = FlatBuffers(compress=compress and worker.advanced.compresses_gradients)

    def __call__(self, arrays: Sequence[Any], op: str = "sum") -> None:
        """Combine C-contiguous arrays, the same number, shapes and dtypes on every worker."""
        for i, array in enumerate(arrays):
            if not hasattr(array, "flags") or not array.flags.c_contiguous or np.isscalar(array):
                raise ConfigurationError(
                    f"got {type(array).__name__} number {i}, which is not a C-contiguous array, "
                    "and the result is written into it: pass numpy.ascontiguousarray(...) and "
                    "keep that array"
                )
        self._buffers.combine(self._call, op, arrays, arrays)

    def _call(self, array: Any, op: str, dest: Any, **feedback: ErrorFeedback) -> None:
        self._worker.all_reduce(array, op, dest=dest, timeout_s=self._timeout_s, **feedback)
