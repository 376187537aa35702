"""Devices as Theano uses them: libgpuarray's contexts, arrays and kernels, by pygpu."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from pygpu import gpuarray
from pygpu.gpuarray import GpuArray, GpuKernel

from platoon_base.centers.device_forms import Operation
from platoon_base.centers.device_runtime import Argument
from platoon_base.centers.device_source import kernel_source
from platoon_base.device_arrays import Queue
from platoon_base.devices.cuda import Driver, load
from platoon_base.rules.forms import Form

__all__ = ["PygpuRuntime", "runtime_of"]


class PygpuRuntime:
    """See `DeviceRuntime`. libgpuarray orders all work by the arrays that it is given.

    Parameters
    ----------
    context : pygpu GpuContext, of CUDA
    """

    most_parameters = 400  # CUDA passes 4 KB of arguments

    def __init__(self, context: Any) -> None:
        self._context = context
        library = load("libgpuarray.so.3")
        library.gpuarray_get_extension.restype = ctypes.c_void_p
        library.gpuarray_get_extension.argtypes = [ctypes.c_char_p]
        extension = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        enter = extension(library.gpuarray_get_extension(b"cuda_enter"))
        leave = extension(library.gpuarray_get_extension(b"cuda_exit"))
        self.driver = Driver(lambda: enter(context.ptr), lambda: leave(context.ptr))
        self.multiprocessors = int(context.numprocs)

    def buffer(self, values: np.ndarray[Any, Any]) -> _Buffer:
        """See `DeviceRuntime.buffer`."""
        return _Buffer(gpuarray.array(values, context=self._context))

    def zeros(self, size: int, dtype: str) -> _Buffer:
        """See `DeviceRuntime.zeros`."""
        return _Buffer(gpuarray.zeros((size,), dtype, context=self._context))

    def change(self, arrays: Sequence[GpuArray], queue: Queue) -> None:
        """See `DeviceRuntime.change`: a kernel is ordered by its arguments, on whatever stream."""
        queue([int(array.gpudata) for array in arrays], 0)

    def compile(
        self, name: str, form: Form, operation: Operation, dtype: np.dtype[Any], parameters: int, lock_ns: int
    ) -> _Kernel:
        """See `DeviceRuntime.compile`: the arrays are arguments too, unused, for the order of the work."""
        source = kernel_source(name, form, operation, dtype, parameters, lock_ns)
        u64, u32 = np.dtype("uint64"), np.dtype("uint32")
        scalars, arrays = [dtype] * len(operation.scalars), [GpuArray] * parameters
        types = [GpuArray, GpuArray, u64, u64, u32, GpuArray, u64, *scalars, *arrays]
        have_double = dtype == np.float64
        return _Kernel(GpuKernel(source, name, types, context=self._context, have_double=have_double, cuda=True))


class _Buffer:
    def __init__(self, array: GpuArray) -> None:
        self.array = array
        self.address = int(array.gpudata)

    def write(self, values: np.ndarray[Any, Any], stream: int | None = None) -> None:
        self.array.write(values)

    def read(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.array)


class _Kernel:
    def __init__(self, kernel: GpuKernel) -> None:
        self._kernel = kernel

    def launch(
        self, arguments: Sequence[Argument], arrays: Sequence[GpuArray], stream: int, blocks: int, threads: int
    ) -> None:
        given = [argument.array if isinstance(argument, _Buffer) else argument for argument in arguments]
        self._kernel(*given, *arrays, gs=blocks, ls=threads)


@functools.cache
def runtime_of(context: Any) -> PygpuRuntime:
    """Return the runtime of a pygpu context, one for all centers of a process."""
    return PygpuRuntime(context)
