"""Sums over workers in memory of CUDA devices, for frameworks that pass addresses and streams."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.devices.cuda import Driver, primary_driver
from platoon_base.dtypes import Array
from platoon_base.layout import array_on

_REMEDY = "gradients cannot be averaged on this device"


class DeviceAllReduce:
    """All-reduce between one CUDA device of each worker, queued on the streams of a framework.

    All calls return immediately; only `Fetched.values` waits for the device.
    """

    def __init__(self, group: Any, ordinal: int, timeout_s: float) -> None:
        self._group = group
        self.compresses: bool = group.compresses
        self._timeout_s = timeout_s
        self._driver = primary_driver(ordinal, _REMEDY)
        self._spare: list[Fetched] = []
        self._taking = threading.Lock()

    def add_up(self, address: int, count: int, dtype: str, stream: int, feedback: ErrorFeedback | None = None) -> None:
        """Queue an all-reduce: replace elements by their sums; with ``feedback`` compressed."""
        given = address, address, count, dtype, "sum", 0, stream, self._timeout_s
        self._group.call("all_reduce", *given, feedback)

    def put(self, address: int, value: float, stream: int) -> None:
        """Queue the write of a float32 to the device."""
        self._driver.queue_word(address, int(np.float32(value).view(np.uint32)), stream)

    def fetch(self, address: int, count: int, stream: int) -> Fetched:
        """Queue the copy of float32 elements to the host."""
        with self._taking:
            at = next((i for i, spare in enumerate(self._spare) if spare.array.size == count), None)
            fetched = None if at is None else self._spare.pop(at)
        fetched = Fetched(self, self._driver, count) if fetched is None else fetched
        fetched.start(address, stream)
        return fetched

    def require_sound(self) -> None:
        """Raise if the group has failed; the results of the latest sums are undefined then."""
        self._group.require_sound()

    def reuse(self, fetched: Fetched) -> None:
        with self._taking:
            self._spare.append(fetched)


class Fetched:
    """An asynchronous copy of elements from a device to the host, in page-locked memory."""

    # The memory is never freed, but reused for later copies.

    def __init__(self, owner: DeviceAllReduce, driver: Driver, count: int) -> None:
        self._owner, self._driver, self._event = owner, driver, driver.new_event()
        memory = (ctypes.c_float * count).from_address(driver.allocate_on_host(4 * count))
        self.array: Array = array_on(memory, (count,), np.float32)

    def start(self, source: int, stream: int) -> None:
        self._driver.queue_read(self.array.ctypes.data, source, self.array.nbytes, stream)
        self._driver.record(self._event, stream)

    def drop(self) -> None:
        """Give the memory back unread, after the copy."""
        self._driver.wait_for(self._event)
        self._owner.reuse(self)

    def values(self) -> Array:
        """Wait for the copy and return the elements, once; raise if an earlier sum has failed."""
        self._driver.wait_for(self._event)
        self._owner.require_sound()  # After a failed sum the elements are undefined.
        values = self.array.copy()
        self._owner.reuse(self)
        return values
