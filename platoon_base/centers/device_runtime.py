"""The runtime of a device, which a center there computes by: buffers, kernels, the driver in a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Union

import numpy as np

from platoon_base.centers.device_forms import Operation
from platoon_base.device_arrays import Queue
from platoon_base.devices.cuda import Driver
from platoon_base.rules.forms import Form

__all__ = ["Argument", "DeviceBuffer", "DeviceRuntime", "Kernel"]


class DeviceBuffer(Protocol):
    """Memory of the device for the center's own words.

    Attributes
    ----------
    address : int
    """

    address: int

    def write(self, values: np.ndarray[Any, Any], stream: int | None = None) -> None:
        """Fill the buffer, once the kernels that were launched with it are done; kernels launched next see it.

        Parameters
        ----------
        values : array
        stream : int, optional
            On which those kernels will be; then the host need not wait.
        """
        ...

    def read(self) -> np.ndarray[Any, Any]:
        """Wait for the kernels that were launched with the buffer, and return a copy of it."""
        ...


Argument = Union[DeviceBuffer, int, float]


class Kernel(Protocol):
    """A compiled kernel."""

    def launch(
        self, arguments: Sequence[Argument], arrays: Sequence[Any], stream: int, blocks: int, threads: int
    ) -> None:
        """Queue the kernel, within `DeviceRuntime.change`.

        Parameters
        ----------
        arguments : sequence of DeviceBuffer, int or float
            As `kernel_source` lists them, without the parameters.
        arrays : sequence of device array
            The parameters that it changes, by the addresses in one of the buffers.
        stream : int
        blocks, threads : int
        """
        ...


class DeviceRuntime(Protocol):
    """One device, as the framework of the parameters uses it.

    Attributes
    ----------
    driver : Driver
    multiprocessors : int
    most_parameters : int
        Of one launch.
    """

    driver: Driver
    multiprocessors: int
    most_parameters: int

    def buffer(self, values: np.ndarray[Any, Any]) -> DeviceBuffer:
        """Allocate a buffer with these values."""
        ...

    def zeros(self, size: int, dtype: str) -> DeviceBuffer:
        """Allocate a buffer of zeros."""
        ...

    def change(self, arrays: Sequence[Any], queue: Queue) -> None:
        """Let a kernel be queued behind all work on arrays, and before what is queued on them next; see
        `CudaArray.change`.
        """
        ...

    def compile(
        self, name: str, form: Form, operation: Operation, dtype: np.dtype[Any], parameters: int, lock_ns: int
    ) -> Kernel:
        """Compile a kernel that `kernel_source` writes, for launches with so many arrays."""
        ...
