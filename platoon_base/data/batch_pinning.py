"""Page-locked (pinned) slots: a GPU copies from them at full speed while the worker computes.

CUDA's driver locks the memory of the slots in place, without a copy, for all frameworks of the
process. OpenCL is not supported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from platoon_base.devices.cuda import Driver, DriverError, drivers_in_use

__all__ = ["Mark", "Pinning"]

Mark = Sequence[tuple[Driver, Any]]  # The driver in each context, with an event.

_REMEDY = "GPUs copy from them more slowly"


class Pinning:
    """The CUDA contexts that this process computes in; use `find`. Only `pin` raises errors."""

    def __init__(self, drivers: list[Driver]) -> None:
        self._drivers = drivers
        self._addresses: dict[int, int] = {}  # Pinned memory by slot.

    @classmethod
    def find(cls) -> Pinning | None:
        """Return the pinning of this process; None if it does not compute on CUDA, or not yet."""
        drivers = drivers_in_use(_REMEDY)
        return cls(drivers) if drivers else None

    def pin(self, index: int, memory: Any) -> None:
        """Lock the memory of a slot; raise `DriverError` if it cannot be locked."""
        address = int(memory.ctypes.data)
        self._drivers[0].pin(address, memory.nbytes)
        self._addresses[index] = address

    def unpin(self, index: int) -> None:
        address = self._addresses.pop(index, None)
        if address is not None:
            with contextlib.suppress(DriverError):
                self._drivers[0].unpin(address)

    def mark(self) -> Mark:
        """Record events on the GPUs: copies started until now may still read the memory."""
        mark = []
        for driver in self._drivers:
            with contextlib.suppress(DriverError):
                event = driver.new_event()
                mark.append((driver, event))
                driver.record(event, _stream())
        return mark

    def is_over(self, mark: Mark) -> bool:
        """Return whether all copies that were started before a mark have ended."""
        for driver, event in mark:
            with contextlib.suppress(DriverError):
                if not driver.is_over(event):
                    return False
        for driver, event in mark:
            with contextlib.suppress(DriverError):
                driver.close_event(event)
        return True

    def wait(self) -> None:
        """Wait for all work of the GPUs, so that none reads memory that is about to be unlocked."""
        for driver in self._drivers:
            with contextlib.suppress(DriverError):
                driver.finish()


def _stream() -> int:
    """Return the stream of copies: torch's current one, or the one that waits for all others."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)
