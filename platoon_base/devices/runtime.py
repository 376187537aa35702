"""Device as the framework of the parameters uses it: buffers, kernels, driver, order of work.

`CudaRuntime` serves torch and JAX in CUDA's primary contexts, by the driver and NVRTC. It needs
``cuda-bindings`` and no framework: arrays are `CudaArray`, with the stream of their framework.
`pygpu_runtime` serves Theano, by libgpuarray.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Union

import numpy as np

from platoon_base.device_arrays import CudaArray, CudaContext, Flush, Queue
from platoon_base.devices.cuda import OF_CENTER, Driver, DriverError, compile_source, nvrtc_version, primary_driver
from platoon_base.dtypes import Array

# Source(n) is the text of a kernel with n unused arrays after its arguments.
Source = Callable[[int], str]
# Types of a kernel's arguments: names of dtypes; None is a buffer.
Types = Sequence[Union[str, None]]

# Compiled first, to find out early whether kernels can be compiled.
_NOTHING = 'extern "C" __global__ void nothing() {}'


class DeviceBuffer(Protocol):
    """Memory of the device for the center's own words."""

    address: int

    def write(self, values: Array, stream: int | None = None) -> None:
        """Fill the buffer after earlier kernels; with a ``stream`` the host does not wait."""
        ...

    def read(self) -> Array:
        """Wait for earlier kernels with the buffer, and return a copy."""
        ...


Argument = Union[DeviceBuffer, int, float]


class Kernel(Protocol):
    """Compiled kernel."""

    def launch(
        self, arguments: Sequence[Argument], arrays: Sequence[Any], stream: int, blocks: int, threads: int
    ) -> None:
        """Queue the kernel within `DeviceRuntime.change`; it changes ``arrays`` by address."""
        ...


class DeviceRuntime(Protocol):
    """One device, as the framework of the parameters uses it."""

    driver: Driver
    multiprocessors: int
    most_parameters: int  # Maximum of one launch.

    def buffer(self, values: Array) -> DeviceBuffer:
        """Allocate a buffer with these values."""
        ...

    def zeros(self, size: int, dtype: str) -> DeviceBuffer:
        """Allocate a buffer of zeros."""
        ...

    # With ``may_wait``, the call of ``queue`` may be deferred to the framework's next use of the
    # arrays. Then `change` returns a function that makes the call, unless it has been made.
    def change(self, arrays: Any, queue: Queue, may_wait: bool = False) -> Flush | None:
        """Queue a kernel between earlier and later work on `Borrowed` arrays; see `CudaArray.change`."""
        ...

    def compile(self, name: str, source: Source, types: Types, arrays: int) -> Kernel:
        """Compile a kernel; a launch changes ``arrays`` arrays."""
        ...


class CudaRuntime:
    """`DeviceRuntime` of frameworks that compute in the primary context."""

    # Kernels run on the framework's stream. An event follows the latest kernel; accesses to buffers
    # and work on other streams wait for it. No stream is used later, when it may have been
    # destroyed.
    most_parameters = 1 << 31

    def __init__(
        self, ordinal: int, compiler: Callable[[str, str], bytes] | None = None, remedy: str = OF_CENTER
    ) -> None:
        if compiler is None:
            # Raises without NVRTC before anything of the device is allocated.
            nvrtc_version()
        self._compile = compiler or compile_source
        self.driver = primary_driver(ordinal, remedy)
        self.multiprocessors = self.driver.multiprocessors(ordinal)
        self._machine = self.driver.machine(ordinal)
        self._event = self.driver.new_event()
        self._latest: int | None = None
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._codes: dict[str, bytes] = {}  # Machine code of a text with several kernels.
        self._load(_NOTHING, "nothing")

    def buffer(self, values: Array) -> _Buffer:
        found = _Buffer(self, values.size, values.dtype)
        found.write(values)
        return found

    def zeros(self, size: int, dtype: str) -> _Buffer:
        return _Buffer(self, size, np.dtype(dtype))

    def compile(self, name: str, source: Source, types: Types, arrays: int) -> _Kernel:
        """Compile a kernel once for any number of arrays and all centers of the process."""
        text = source(0)
        if (text, name) not in self._kernels:
            self._kernels[text, name] = _Kernel(self, self._load(text, name), types)
        return self._kernels[text, name]

    def _load(self, source: str, name: str) -> ctypes.c_void_p:
        if source not in self._codes:
            self._codes[source] = self._compile(source, self._machine)
        return self.driver.load_kernel(self._codes[source], name)

    def change(self, arrays: Any, queue: Queue, may_wait: bool = False) -> Flush | None:
        flush: Flush | None = arrays.change(queue, may_wait)
        return flush

    def follow(self, stream: int) -> None:
        """Make later work on a stream wait for the kernels launched."""
        if self._latest not in (None, stream):
            self.driver.follow(stream, self._event)

    def launch(self, function: ctypes.c_void_p, values: Sequence[Any], stream: int, size: tuple[int, int]) -> None:
        """Queue a kernel, with ctypes values and (blocks, threads), after all earlier kernels."""
        self.follow(stream)
        self.driver.launch(function, values, stream, *size)
        self.driver.record(self._event, stream)
        self._latest = stream

    def finish(self) -> None:
        """Wait for the kernels launched."""
        self.driver.wait_for(self._event)


class _Buffer:
    def __init__(self, runtime: CudaRuntime, size: int, dtype: np.dtype[Any]) -> None:
        self._runtime, self._size, self._dtype = runtime, size, dtype
        self.address = runtime.driver.allocate(size * dtype.itemsize)
        weakref.finalize(self, _free, runtime, self.address).atexit = False

    def write(self, values: Array, stream: int | None = None) -> None:
        if stream is None:
            self._runtime.finish()
            self._runtime.driver.write(self.address, values)
        else:
            self._runtime.follow(stream)
            self._runtime.driver.queue_write(self.address, values, stream)

    def read(self) -> Array:
        self._runtime.finish()
        found = np.empty(self._size, self._dtype)
        self._runtime.driver.read(self.address, found)
        return found


def _free(runtime: CudaRuntime, address: int) -> None:
    with contextlib.suppress(DriverError):  # The framework's context and its memory are gone.
        runtime.finish()
        runtime.driver.free(address)


class _Kernel:
    def __init__(self, runtime: CudaRuntime, function: ctypes.c_void_p, types: Types) -> None:
        self._runtime, self._function = runtime, function
        self._types = [np.ctypeslib.as_ctypes_type(np.dtype(name or "uint64")) for name in types]

    def launch(
        self, arguments: Sequence[Argument], arrays: Sequence[CudaArray], stream: int, blocks: int, threads: int
    ) -> None:
        given = [a.address if isinstance(a, _Buffer) else a for a in arguments]
        values = [of_type(value) for of_type, value in zip(self._types, given)]
        self._runtime.launch(self._function, values, stream, (blocks, threads))


def runtime_of(context: Any) -> DeviceRuntime:
    """Return the runtime of a device, shared by all centers of a process."""
    if isinstance(context, CudaContext):
        return _cuda_runtime(context)
    found: DeviceRuntime = importlib.import_module("platoon_base.devices.pygpu_runtime").pygpu_runtime(context)
    return found


@functools.cache
def _cuda_runtime(context: CudaContext) -> CudaRuntime:
    return CudaRuntime(context.ordinal)
