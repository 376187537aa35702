"""Partitions of a center on devices that one worker has open: owners and addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from platoon_base.centers.device_directory import NO_OWNER, DeviceDirectory, Entry
from platoon_base.devices.cuda import DeviceMemory, Driver
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.timeouts import LIVENESS_S

_PATIENCE_S = 20.0  # After this time another worker makes a missing partition.
_PAUSE_S = 0.002


def _nothing() -> None:
    """Do nothing."""


class Partitions:
    """Opens the partitions of other workers; makes missing ones and those of dead owners."""

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
        self._open: dict[int, tuple[int, DeviceMemory]] = {}  # By partition: generation and memory.
        self._own: set[int] = set()
        self._seen = -1  # Version of the directory.
        self._next_poll_at = 0.0
        self.version = 0  # Grows whenever the address of a partition changes.

    @property
    def own(self) -> set[int]:
        """Partitions in this worker's memory."""
        return self._own

    @property
    def addresses(self) -> Mapping[int, int]:
        return {partition: memory.address for partition, (_, memory) in self._open.items()}

    def open_all(self, timeout_s: float) -> None:
        """Open all partitions; raise `CollectiveTimeoutError` if one is not made in time."""
        now = time.monotonic()
        if self._seen == self._directory.version and now < self._next_poll_at:
            return
        self._next_poll_at = now + LIVENESS_S
        deadline, patience = now + timeout_s, now + _PATIENCE_S
        while True:
            self._seen = self._directory.version
            missing = [p for p in range(len(self._tiling.partition_bytes)) if not self._have(p, patience)]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for the parts of the center that ranks {missing} "
                    "create: do they share parameters too? Read their logs, or pass a longer "
                    "timeout_s"
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
        """Return whether the owning process lives; a restarted one does not have the memory."""
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
        """Close another process's memory; own memory stays, even if its partition was replaced."""
        if partition in self._own:
            self._own.discard(partition)
        else:
            memory.close()

    def adopt(self, partition: int, generation: int) -> bool:
        """Remake a partition; False if another worker has made it, or holds the lock."""
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
            # Memory of the dead owner that is open here is newer than the mirror.
            if known is not None and known[0] == generation:
                memory.copy(known[1], start)
            else:  # Open memory of an earlier owner may be outdated.
                memory.write(start, self._directory.mirror(partition))
            if known is not None:
                self._close_borrowed(partition, known[1])
            self._directory.publish(partition, self._rank, memory.handle, self._incarnation(self._rank))
            self._open[partition] = generation + 1, memory
            self._own.add(partition)
            self.version += 1
        finally:  # A Ctrl-C may arrive just after the lock is acquired.
            self._directory.unlock(partition)
        return True

    def close(self, over: bool) -> None:
        """Close other workers' memory; ``over`` states that no worker uses the center any more."""
        for partition, (_, memory) in self._open.items():
            if partition not in self._own:
                memory.close()
            elif over:
                memory.reuse()
        self._open = {}
        self._finish = _nothing  # Breaks a reference cycle with the center.
