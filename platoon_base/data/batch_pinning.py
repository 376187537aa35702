"""Page-locked (pinned) slots, from which a GPU copies at full speed while the worker computes.

CUDA's driver locks the memory of the slots as it is, so no batch is copied once more. It does so for all frameworks of
the process: PyTorch, JAX, TensorFlow, and Theano by pygpu. Nothing here does the same for OpenCL.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from platoon_base.devices.cuda import Driver, DriverError, drivers_in_use

__all__ = ["Mark", "Pinning"]

Mark = Sequence[tuple[Driver, Any]]  # the driver in each context, with an event

_REMEDY = "GPUs copy from them more slowly"


class Pinning:
    """The CUDA contexts that this process computes in; use `find`. Errors after `pin` do no harm: none is raised."""

    def __init__(self, drivers: list[Driver]) -> None:
        self._drivers = drivers
        self._addresses: dict[int, int] = {}  # of pinned memory, by slot

    @classmethod
    def find(cls) -> Pinning | None:
        """Return the pinning of this process; None if it does not compute on CUDA, or not yet."""
        drivers = drivers_in_use(_REMEDY)
        return cls(drivers) if drivers else None

    def pin(self, index: int, memory: Any) -> None:
        """Lock the memory of a slot.

        Raises
        ------
        DriverError
            If it cannot be locked.
        """
        address = int(memory.ctypes.data)
        self._drivers[0].pin(address, memory.nbytes)
        self._addresses[index] = address

    def unpin(self, index: int) -> None:
        """Unlock the memory of a slot, before it is unmapped."""
        address = self._addresses.pop(index, None)
        if address is not None:
            with contextlib.suppress(DriverError):
                self._drivers[0].unpin(address)

    def mark(self) -> Mark:
        """Mark this moment on the GPUs: copies that were begun until now may still read the memory."""
        mark = []
        for driver in self._drivers:
            with contextlib.suppress(DriverError):
                event = driver.new_event()
                mark.append((driver, event))
                driver.record(event, _stream())
        return mark

    def is_over(self, mark: Mark) -> bool:
        """Return whether all copies that were begun before a mark have ended."""
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
    """Return the stream that copies are queued on: torch's current one, or the one that waits for all others."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)
