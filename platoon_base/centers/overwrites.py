"""How a center that a worker overwrites gets to the other hosts of a job: words in its memory, beside the stripes.

The worker counts what it has written, and waits; the courier of its host gives the center to all others, and then says
so. A stamp tells which of two hosts' centers was overwritten later; it is alike on all hosts between two overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platoon_base.centers.stripes import wait_until
from platoon_base.errors import CollectiveTimeoutError

__all__ = ["Overwrites", "await_count"]

_HOST_BITS = 16


class Overwrites:
    """The words about overwrites of one center.

    Parameters
    ----------
    header : structured scalar
        With ``written``, ``spread`` and ``stamp``, in shared memory.
    """

    def __init__(self, header: Any) -> None:
        self._header = header

    @property
    def written(self) -> int:
        """How often workers of this host have overwritten the center."""
        return int(self._header["written"])

    def note(self) -> int:
        """Count an overwrite, and return the count; the caller holds the locks of all stripes."""
        self._header["written"] = self.written + 1
        return self.written

    @property
    def spread(self) -> int:
        """The latest of these that all other hosts have."""
        return int(self._header["spread"])

    @spread.setter
    def spread(self, count: int) -> None:
        self._header["spread"] = count

    @property
    def stamp(self) -> int:
        """Of the latest overwrite, on whichever host, that this center holds."""
        return int(self._header["stamp"])

    @stamp.setter
    def stamp(self, stamp: int) -> None:
        self._header["stamp"] = stamp

    @staticmethod
    def later(stamp: int, host: int) -> int:
        """Return the stamp of the next overwrite, on ``host``; if two hosts make one at once, that of the higher."""
        return ((stamp >> _HOST_BITS) + 1 << _HOST_BITS) | host

    def await_all_hosts(self, count: int, timeout_s: float) -> None:
        """Wait until all other hosts have an overwrite; raises `CollectiveTimeoutError`."""
        await_count(
            lambda: self.spread, count, timeout_s, "the other hosts to get the center that this worker has overwritten"
        )


def await_count(read: Callable[[], int], count: int, timeout_s: float, what: str) -> None:
    """Wait until a count that the courier writes has come so far; raises `CollectiveTimeoutError`."""
    if not wait_until(lambda: read() >= count, timeout_s):
        raise CollectiveTimeoutError(
            f"waited {timeout_s:g} s for {what}: is the network slow or cut, or a host suspended? Look into the "
            "logs of the launchers and couriers, or give a longer timeout_s"
        )
