"""The original's data channel and its values: mini-batches as lists of arrays, JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from platoon_base.data.batch_link import connect_link
from platoon_base.data.batch_memory import MAX_AHEAD, MAX_ARRAYS, arrays_on, plan
from platoon_base.data.batch_reader import BatchReader
from platoon_base.data.batch_server import BatchServer
from platoon_base.errors import ConfigurationError
from platoon_base.job.files import data_socket
from platoon_base.platoon_api.arguments import require_port


def to_json(value: Any, what: str) -> str:
    """Encode plain data; raise if JSON has no form for it, such as for an array."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigurationError(
            f"got {what} that JSON cannot represent ({exc}): use numbers, strings, lists and "
            "dicts, such as float(x) for a NumPy scalar and x.tolist() for an array"
        ) from exc


def from_json(text: Any) -> Any:
    """Decode a value of `to_json`; raise if the other side does not use `platoon_api`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"got {str(text)[:100]!r}, which is not JSON ({exc}): worker and controller must both "
            "use platoon_base.platoon_api, or neither"
        ) from exc


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


# No TCP port is opened: a port is only the channel's name, unique for a user and host.


def open_server(port: int, workers: int, remaining: Callable[[], set[int] | None]) -> BatchServer:
    """Open the controller's end; ``remaining`` returns the present or expected ranks, or None."""
    require_port(port)
    return BatchServer(data_socket(port), readers=max(1, workers), remaining=remaining)


def open_reader(port: int, hwm: int, rank: int, timeout_s: float) -> BatchReader:
    """Open a worker's end with up to ``hwm`` waiting batches; waits for the controller's end."""
    return BatchReader(data_socket(port), ahead=_ahead(hwm), rank=rank, timeout_s=timeout_s)


def reader_of_running(port: int, hwm: int, rank: int, timeout_s: float) -> BatchReader | None:
    """Open a worker's end without waiting; None if the controller has not opened its end."""
    link = connect_link(data_socket(port))
    if link is None:
        return None
    return BatchReader.over(
        link,
        ahead=_ahead(hwm),
        copy=False,
        timeout_s=timeout_s,
        server="the batch server",
        rank=rank,
    )


def require_hwm(hwm: Any) -> None:
    """Raise unless so many mini-batches may wait; 0 is the maximum."""
    if isinstance(hwm, bool) or not isinstance(hwm, int) or hwm < 0:
        raise ConfigurationError(f"got data_hwm={hwm!r}: it is the number of mini-batches that may wait, such as 10")


def _ahead(hwm: int) -> int:
    return min(hwm or MAX_AHEAD, MAX_AHEAD)
