"""The original's data channel: mini-batches from the controller to any free worker.

No TCP port is opened: a port is only the channel's name, unique for a user and host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platoon_base.data.batch_frames import MAX_AHEAD
from platoon_base.data.batch_link import connect_link
from platoon_base.data.batch_reader import BatchReader
from platoon_base.data.batch_server import BatchServer
from platoon_base.errors import ConfigurationError
from platoon_base.job.files import data_socket
from platoon_base.platoon_api.arguments import require_port

__all__ = ["open_reader", "open_server", "reader_of_running", "require_hwm"]


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
