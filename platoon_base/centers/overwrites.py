"""Words in a center's memory that pass a worker's overwrite to the other hosts of a job.

The worker counts its overwrite and waits; its courier sends the center to all other hosts and
records that. A version orders the overwrites of different hosts; it is equal on all hosts when none
is in progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platoon_base.centers.stripes import wait_until
from platoon_base.errors import CollectiveTimeoutError

__all__ = ["Overwrites", "await_count"]

_HOST_BITS = 16


class Overwrites:
    """Words for the overwrites of one center, in the header of its shared memory."""

    def __init__(self, header: Any) -> None:
        self._header = header

    @property
    def written(self) -> int:
        """Number of overwrites by workers of this host."""
        return int(self._header["written"])

    def note(self) -> int:
        """Count an overwrite and return the count; the caller holds the locks of all stripes."""
        self._header["written"] = self.written + 1
        return self.written

    @property
    def spread(self) -> int:
        """Count of the latest overwrite that all other hosts have."""
        return int(self._header["spread"])

    @spread.setter
    def spread(self, count: int) -> None:
        self._header["spread"] = count

    @property
    def stamp(self) -> int:
        """Version of the latest overwrite, by any host, that this center holds."""
        return int(self._header["stamp"])

    @stamp.setter
    def stamp(self, stamp: int) -> None:
        self._header["stamp"] = stamp

    @staticmethod
    def later(stamp: int, host: int) -> int:
        """Return the version of the next overwrite on ``host``; the higher host wins a tie."""
        return ((stamp >> _HOST_BITS) + 1 << _HOST_BITS) | host

    def await_all_hosts(self, count: int, timeout_s: float) -> None:
        """Wait until all other hosts have an overwrite, or raise `CollectiveTimeoutError`."""
        await_count(
            lambda: self.spread, count, timeout_s, "the other hosts to get the center that this worker has overwritten"
        )


def await_count(read: Callable[[], int], count: int, timeout_s: float, what: str) -> None:
    """Wait until the courier's count reaches ``count``, or raise `CollectiveTimeoutError`."""
    if not wait_until(lambda: read() >= count, timeout_s):
        raise CollectiveTimeoutError(
            f"waited {timeout_s:g} s for {what}: is the network slow or cut, or a host suspended? Look into the "
            "logs of the launchers and couriers, or give a longer timeout_s"
        )
