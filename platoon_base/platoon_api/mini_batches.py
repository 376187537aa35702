"""Mini-batches of the original: any sequence of arrays, which arrives as a list of views."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from platoon_base.data.batch_frames import MAX_ARRAYS, arrays_on, plan
from platoon_base.errors import ConfigurationError

__all__ = ["pack", "unpack"]

_ROWS, _MEMORY, _LAYOUT = "rows", "memory", "layout"


def pack(arrays: Any) -> Any:
    """Return a mini-batch as a `BatchServer` sends it; an ndarray is the list of its rows."""
    if isinstance(arrays, np.ndarray) and arrays.ndim:
        return {_ROWS: arrays}
    if not (isinstance(arrays, (list, tuple)) and arrays and all(hasattr(array, "dtype") for array in arrays)):
        raise ConfigurationError(
            f"got {type(arrays).__name__} as a mini-batch: send_mb takes a list of ndarrays, or one ndarray for the "
            "list of its rows"
        )
    if len(arrays) <= MAX_ARRAYS:
        return list(arrays)
    layout = [(np.shape(array), array.dtype.str) for array in arrays]
    whole = plan(layout)
    memory = np.empty(whole.size_bytes, np.uint8)
    for target, array in zip(arrays_on(memory, whole.parts), arrays):
        target[...] = np.asarray(array)
    return {_MEMORY: memory, _LAYOUT: np.frombuffer(json.dumps(layout).encode(), np.uint8)}


def unpack(batch: Any) -> list[Any]:
    if not isinstance(batch, dict):
        return list(batch)
    if _ROWS in batch:
        return [np.asarray(row) for row in batch[_ROWS]]
    layout = json.loads(bytes(batch[_LAYOUT]))
    return arrays_on(batch[_MEMORY], plan([(tuple(shape), dtype) for shape, dtype in layout]).parts)
