"""The partitions of a center on devices, as one worker has them open: their owners and addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from platoon_base.centers.device_directory import NO_OWNER, DeviceDirectory, Entry
from platoon_base.devices.cuda import DeviceMemory, Driver
from platoon_base.errors import CollectiveTimeoutError

__all__ = ["Partitions"]

_POLL_INTERVAL_S = 0.25  # between checks whether the owners of partitions live
_PATIENCE_S = 20.0  # after which another worker makes a partition in its owner's place
_PAUSE_S = 0.002


def _nothing() -> None:
    """Do nothing."""


class Partitions:
    """Opens the partitions of other workers, and makes those that are missing or whose owner has died.

    Parameters
    ----------
    directory : DeviceDirectory
    driver : Driver
        Of the device on which this worker makes partitions.
    rank : int
        In the job.
    gone, incarnation : callable
        Of `Liveness`: whether a worker has left or died, and the number of its process.
    finish : callable
        Waits for the queued kernels of this worker; called before memory that they may use is closed.
    """

    def __init__(
        self,
        directory: DeviceDirectory,
        driver: Driver,
        rank: int,
        gone: Callable[[int], bool],
        incarnation: Callable[[int], int],
        finish: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._driver = driver
        self._rank = rank
        self._gone = gone
        self._incarnation = incarnation
        self._finish = finish
        self._tiling = directory.tiling
        self._open: dict[int, tuple[int, DeviceMemory]] = {}  # partition -> generation and memory
        self._own: set[int] = set()
        self._seen = -1  # version of the directory
        self._next_poll_at = 0.0
        self.version = 0  # grows whenever the address of a partition changes

    @property
    def own(self) -> set[int]:
        """The partitions in this worker's memory."""
        return self._own

    @property
    def addresses(self) -> Mapping[int, int]:
        """The address of each partition."""
        return {partition: memory.address for partition, (_, memory) in self._open.items()}

    def open_all(self, timeout_s: float) -> None:
        """Open all partitions that are not open yet.

        Raises
        ------
        CollectiveTimeoutError
            If a partition was not made within ``timeout_s`` seconds.
        """
        now = time.monotonic()
        if self._seen == self._directory.version and now < self._next_poll_at:
            return
        self._next_poll_at = now + _POLL_INTERVAL_S
        deadline, patience = now + timeout_s, now + _PATIENCE_S
        while True:
            self._seen = self._directory.version
            missing = [p for p in range(len(self._tiling.partition_bytes)) if not self._have(p, patience)]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for the parts of the center that ranks {missing} make: do they share "
                    "parameters too? Look into their logs, or give a longer timeout_s"
                )
            time.sleep(_PAUSE_S)

    def _have(self, partition: int, patience: float) -> bool:
        entry = self._directory.entry(partition)
        known = self._open.get(partition)
        if entry.generation and self._owned(partition, entry):
            if known is None or known[0] != entry.generation:
                self._open_one(partition, entry.generation, entry.handle)
            return True
        never_made = not entry.generation
        if never_made and not self._gone(partition) and time.monotonic() < patience:
            return False
        return self.adopt(partition, entry.generation)

    def _owned(self, partition: int, entry: Entry) -> bool:
        """Return whether the owning process lives; a later process of the same rank does not have the memory."""
        if entry.owner == self._rank:
            return partition in self._own
        return (
            entry.owner != NO_OWNER
            and not self._gone(entry.owner)
            and self._incarnation(entry.owner) == entry.incarnation
        )

    def _open_one(self, partition: int, generation: int, handle: bytes) -> None:
        known = self._open.pop(partition, None)
        if known is not None:
            self._finish()
            self._close_borrowed(partition, known[1])
        size = self._tiling.partition_bytes[partition]
        self._open[partition] = generation, DeviceMemory.open(self._driver, handle, size)
        self.version += 1

    def _close_borrowed(self, partition: int, memory: DeviceMemory) -> None:
        """Close another process's memory; own memory stays, even if another worker has replaced the partition."""
        if partition in self._own:
            self._own.discard(partition)
        else:
            memory.close()

    def adopt(self, partition: int, generation: int) -> bool:
        """Make a partition again, from its dead owner's memory if that is still open here, otherwise from the mirror.

        Parameters
        ----------
        partition : int
        generation : int
            The partition's current generation, 0 if it was never made.

        Returns
        -------
        bool
            Whether this worker has made it; otherwise another worker has, or holds the lock to do so.
        """
        try:
            if not self._directory.try_lock(partition):
                return False
            if self._directory.entry(partition).generation != generation:
                return False
            memory = DeviceMemory.allocate(self._driver, self._tiling.partition_bytes[partition])
            start = self._tiling.values_start[partition]
            known = self._open.get(partition)
            if known is not None:
                self._finish()
            if known is not None and known[0] == generation:
                memory.copy(known[1], start)
            else:  # memory that is open here may be outdated: another owner may have followed
                memory.write(start, self._directory.mirror(partition))
            if known is not None:
                self._close_borrowed(partition, known[1])
            self._directory.publish(partition, self._rank, memory.handle, self._incarnation(self._rank))
            self._open[partition] = generation + 1, memory
            self._own.add(partition)
            self.version += 1
        finally:  # a Ctrl-C may come between acquiring the lock and knowing so
            self._directory.unlock(partition)
        return True

    def close(self, over: bool) -> None:
        """Close other workers' memory; ``over`` states that no worker uses the center: own memory may be reused."""
        for partition, (_, memory) in self._open.items():
            if partition not in self._own:
                memory.close()
            elif over:
                memory.reuse()
        self._open = {}
        self._finish = _nothing  # breaks a reference cycle, so that the center is freed with its last reference
