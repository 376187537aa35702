"""Devices as torch and JAX use them: primary contexts of CUDA, with kernels by NVRTC and the driver.

It needs ``cuda-bindings`` for NVRTC, and no framework: arrays come as `CudaArray`, with the stream of their framework.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.device_forms import Operation
from platoon_base.centers.device_runtime import Argument
from platoon_base.centers.device_source import kernel_source
from platoon_base.device_arrays import CudaArray, CudaContext, Queue
from platoon_base.devices.cuda import DriverError, primary_driver
from platoon_base.devices.nvrtc import compile_source, nvrtc_version
from platoon_base.rules.forms import Form

__all__ = ["CudaRuntime", "runtime_of"]

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
_NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING
_NOTHING = 'extern "C" __global__ void nothing() {}'  # by which it is known early whether kernels can be had


class CudaRuntime:
    """See `DeviceRuntime`.

    Kernels are launched on the stream that the framework computes on. An event follows the latest kernel: whoever
    writes to a buffer or reads it waits for it, and so does work on another stream. So the order holds on all streams,
    and no stream is asked for that its framework may have destroyed.

    Parameters
    ----------
    ordinal : int
        Number of the device, as the driver counts.
    compiler : callable, optional
        ``compiler(source, machine)`` returns what the driver loads; the default is `compile_source`.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, no such device, or no NVRTC whose code the driver takes.
    """

    most_parameters = 1 << 31

    def __init__(self, ordinal: int, compiler: Callable[[str, str], bytes] | None = None) -> None:
        if compiler is None:
            nvrtc_version()  # each center asks again where there is none: nothing of the device is taken before
        self._compile = compiler or compile_source
        self.driver, device = primary_driver(ordinal), ctypes.c_int()
        self.driver.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.multiprocessors = self._attribute(_MULTIPROCESSORS, device)
        self._machine = f"sm_{self._attribute(_MAJOR, device)}{self._attribute(_MINOR, device)}"
        self._event = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(self._event), ctypes.c_uint(_NO_TIMES))
        self._latest: int | None = None
        self._kernels: dict[str, _Kernel] = {}
        self._load(_NOTHING, "nothing")

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        found = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(number), device)
        return found.value

    def buffer(self, values: np.ndarray[Any, Any]) -> _Buffer:
        """See `DeviceRuntime.buffer`."""
        found = _Buffer(self, values.size, values.dtype)
        found.write(values)
        return found

    def zeros(self, size: int, dtype: str) -> _Buffer:
        """See `DeviceRuntime.zeros`."""
        return _Buffer(self, size, np.dtype(dtype))

    def compile(
        self, name: str, form: Form, operation: Operation, dtype: np.dtype[Any], parameters: int, lock_ns: int
    ) -> _Kernel:
        """See `DeviceRuntime.compile`: one kernel does for any number of arrays, and for all centers of a process."""
        source = kernel_source(name, form, operation, dtype, 0, lock_ns)
        if source not in self._kernels:
            self._kernels[source] = _Kernel(self, self._load(source, name), len(operation.scalars), dtype)
        return self._kernels[source]

    def _load(self, source: str, name: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), self._compile(source, self._machine))
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def change(self, arrays: Sequence[CudaArray], queue: Queue) -> None:
        """See `DeviceRuntime.change`."""
        arrays[0].change(arrays, queue)

    def follow(self, stream: int) -> None:
        """Let what is queued on a stream from now on wait for the kernels that were launched."""
        if self._latest not in (None, stream):
            self.driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream), self._event, ctypes.c_uint(0))

    def launch(self, function: ctypes.c_void_p, values: Sequence[Any], stream: int, size: tuple[int, int]) -> None:
        """Queue a kernel with these values of ctypes, so many blocks and threads, behind all that was queued before."""
        self.follow(stream)
        given = ctypes.c_void_p(stream)
        blocks, threads = (ctypes.c_uint(number) for number in size)
        one, nothing = ctypes.c_uint(1), ctypes.c_uint(0)
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.driver.call(
            "cuLaunchKernel", function, blocks, one, one, threads, one, one, nothing, given, arguments, None
        )
        self.driver.call("cuEventRecord", self._event, given)
        self._latest = stream

    def finish(self) -> None:
        """Wait for the kernels that were launched."""
        self.driver.call("cuEventSynchronize", self._event)


class _Buffer:
    def __init__(self, runtime: CudaRuntime, size: int, dtype: np.dtype[Any]) -> None:
        self._runtime, self._size, self._dtype = runtime, size, dtype
        self.address = runtime.driver.allocate(size * dtype.itemsize)
        weakref.finalize(self, _free, runtime, self.address).atexit = False

    def write(self, values: np.ndarray[Any, Any], stream: int | None = None) -> None:
        if stream is None:
            self._runtime.finish()
            self._runtime.driver.write(self.address, values)
        else:
            self._runtime.follow(stream)
            self._runtime.driver.queue_write(self.address, values, stream)

    def read(self) -> np.ndarray[Any, Any]:
        self._runtime.finish()
        found = np.empty(self._size, self._dtype)
        target, source = ctypes.c_void_p(found.ctypes.data), ctypes.c_uint64(self.address)
        self._runtime.driver.call("cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(found.nbytes))
        return found


def _free(runtime: CudaRuntime, address: int) -> None:
    with contextlib.suppress(DriverError):  # the framework's context is gone: its memory is, too
        runtime.finish()
        runtime.driver.call("cuMemFree_v2", ctypes.c_uint64(address))


class _Kernel:
    def __init__(self, runtime: CudaRuntime, function: ctypes.c_void_p, scalars: int, dtype: np.dtype[Any]) -> None:
        self._runtime, self._function = runtime, function
        real = ctypes.c_float if dtype == np.float32 else ctypes.c_double
        u64, u32 = ctypes.c_uint64, ctypes.c_uint32
        self._types: list[Any] = [u64, u64, u64, u64, u32, u64, u64, *[real] * scalars]

    def launch(
        self, arguments: Sequence[Argument], arrays: Sequence[CudaArray], stream: int, blocks: int, threads: int
    ) -> None:
        given = [a.address if isinstance(a, _Buffer) else a for a in arguments]
        values = [of_type(value) for of_type, value in zip(self._types, given)]
        self._runtime.launch(self._function, values, stream, (blocks, threads))


@functools.cache
def runtime_of(context: CudaContext) -> CudaRuntime:
    """Return the runtime of a device, one for all centers of a process."""
    return CudaRuntime(context.ordinal)
