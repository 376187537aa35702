"""A device as the framework of the parameters uses it: buffers, kernels, the driver in a context, the order of work.

`CudaRuntime` serves torch and JAX, in the primary contexts of CUDA, with kernels by NVRTC and the driver. It needs
``cuda-bindings`` for NVRTC, and no framework: arrays come as `CudaArray`, with the stream of their framework.
`pygpu_runtime` does the same for Theano, by libgpuarray. `runtime_of` chooses.
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

__all__ = ["Argument", "CudaRuntime", "DeviceBuffer", "DeviceRuntime", "Kernel", "runtime_of"]

Array = np.ndarray[Any, Any]
Source = Callable[[int], str]  # the text of a kernel that has so many arrays behind its arguments, unused
Types = Sequence[Union[str, None]]  # of a kernel's arguments: names of dtypes; None stands for a buffer

_NOTHING = 'extern "C" __global__ void nothing() {}'  # by which it is known early whether kernels can be had


class DeviceBuffer(Protocol):
    """Memory of the device for the center's own words.

    Attributes
    ----------
    address : int
    """

    address: int

    def write(self, values: Array, stream: int | None = None) -> None:
        """Fill the buffer, once the kernels that were launched with it are done; kernels launched next see it.

        Parameters
        ----------
        values : array
        stream : int, optional
            On which those kernels will be; then the host need not wait.
        """
        ...

    def read(self) -> Array:
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
            Of the types that it was compiled for.
        arrays : sequence of device array
            That it changes, by the addresses in one of the buffers.
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

    def buffer(self, values: Array) -> DeviceBuffer:
        """Allocate a buffer with these values."""
        ...

    def zeros(self, size: int, dtype: str) -> DeviceBuffer:
        """Allocate a buffer of zeros."""
        ...

    def change(self, arrays: Sequence[Any], queue: Queue, may_wait: bool = False) -> Flush | None:
        """Let a kernel be queued behind all work on arrays, and before what is queued on them next; see
        `CudaArray.change`.

        With ``may_wait`` the call of ``queue`` may be put off until the framework uses the arrays next. Then it returns
        a function that makes the call, unless it has been made; whoever reads the arrays does so too.
        """
        ...

    def compile(self, name: str, source: Source, types: Types, arrays: int) -> Kernel:
        """Compile a kernel.

        Parameters
        ----------
        name : str
        source : callable
            ``source(n)`` writes it with ``n`` arrays behind its arguments.
        types : sequence of str or None
            Of its arguments; None stands for a buffer.
        arrays : int
            That a launch changes.
        """
        ...


class CudaRuntime:
    """The `DeviceRuntime` of frameworks that compute in the primary context.

    Kernels are launched on the stream that the framework computes on. An event follows the latest kernel: whoever
    writes to a buffer or reads it waits for it, and so does work on another stream. So the order holds on all streams,
    and no stream is asked for that its framework may have destroyed.

    Parameters
    ----------
    ordinal : int
        Number of the device, as the driver counts.
    compiler : callable, optional
        ``compiler(source, machine)`` returns what the driver loads; the default is `compile_source`.
    remedy : str, optional
        What the error about a call of the driver that fails says at its end.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, no such device, or no NVRTC whose code the driver takes.
    """

    most_parameters = 1 << 31

    def __init__(
        self, ordinal: int, compiler: Callable[[str, str], bytes] | None = None, remedy: str = OF_CENTER
    ) -> None:
        if compiler is None:
            nvrtc_version()  # each center asks again where there is none: nothing of the device is taken before
        self._compile = compiler or compile_source
        self.driver = primary_driver(ordinal, remedy)
        self.multiprocessors = self.driver.multiprocessors(ordinal)
        self._machine = self.driver.machine(ordinal)
        self._event = self.driver.new_event()
        self._latest: int | None = None
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._codes: dict[str, bytes] = {}  # of a text with several kernels
        self._load(_NOTHING, "nothing")

    def buffer(self, values: Array) -> _Buffer:
        found = _Buffer(self, values.size, values.dtype)
        found.write(values)
        return found

    def zeros(self, size: int, dtype: str) -> _Buffer:
        return _Buffer(self, size, np.dtype(dtype))

    def compile(self, name: str, source: Source, types: Types, arrays: int) -> _Kernel:
        """Compile a kernel: one for any number of arrays, and for all centers of a process."""
        text = source(0)
        if (text, name) not in self._kernels:
            self._kernels[text, name] = _Kernel(self, self._load(text, name), types)
        return self._kernels[text, name]

    def _load(self, source: str, name: str) -> ctypes.c_void_p:
        if source not in self._codes:
            self._codes[source] = self._compile(source, self._machine)
        return self.driver.load_kernel(self._codes[source], name)

    def change(self, arrays: Sequence[CudaArray], queue: Queue, may_wait: bool = False) -> Flush | None:
        at_once: Any = arrays
        if hasattr(arrays, "like"):  # borrowed all at once; see `platoon_base.parameters.Group`
            flush: Flush | None = at_once.change(queue, may_wait)
            return flush
        arrays[0].change(arrays, queue)
        return None

    def follow(self, stream: int) -> None:
        """Let what is queued on a stream from now on wait for the kernels that were launched."""
        if self._latest not in (None, stream):
            self.driver.follow(stream, self._event)

    def launch(self, function: ctypes.c_void_p, values: Sequence[Any], stream: int, size: tuple[int, int]) -> None:
        """Queue a kernel with these values of ctypes, so many blocks and threads, behind all that was queued before."""
        self.follow(stream)
        self.driver.launch(function, values, stream, *size)
        self.driver.record(self._event, stream)
        self._latest = stream

    def finish(self) -> None:
        """Wait for the kernels that were launched."""
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
    with contextlib.suppress(DriverError):  # the framework's context is gone: its memory is, too
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
    """Return the runtime of a device, one for all centers of a process.

    Parameters
    ----------
    context : CudaContext or pygpu GpuContext of CUDA

    Raises
    ------
    BackendUnavailableError
        See `CudaRuntime`.
    """
    if isinstance(context, CudaContext):
        return _cuda_runtime(context)
    found: DeviceRuntime = importlib.import_module("platoon_base.devices.pygpu_runtime").pygpu_runtime(context)
    return found


@functools.cache
def _cuda_runtime(context: CudaContext) -> CudaRuntime:
    return CudaRuntime(context.ordinal)
