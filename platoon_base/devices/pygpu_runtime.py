"""Devices as Theano uses them: libgpuarray's contexts, arrays and kernels, by pygpu."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pygpu import gpuarray
from pygpu.gpuarray import GpuArray, GpuKernel

from platoon_base.device_arrays import Queue
from platoon_base.devices.cuda import Driver, load
from platoon_base.devices.runtime import Argument, Source, Types
from platoon_base.dtypes import Array
from platoon_base.errors import BackendUnavailableError

_TOUCH = 'extern "C" __global__ void touch(const char *one, const char *other) {}'


class PygpuRuntime:
    """`DeviceRuntime` by libgpuarray, which orders all work by its arrays."""

    most_parameters = 400  # CUDA passes at most 4 KB of arguments.

    def __init__(self, context: Any) -> None:
        self._context = context  # The device's primary one: libgpuarray creates no others.
        library = load("libgpuarray.so.3")
        library.gpuarray_get_extension.restype = ctypes.c_void_p
        library.gpuarray_get_extension.argtypes = [ctypes.c_char_p]
        extension = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        enter = extension(library.gpuarray_get_extension(b"cuda_enter"))
        leave = extension(library.gpuarray_get_extension(b"cuda_exit"))
        stream_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            library.gpuarray_get_extension(b"cuda_get_stream")
        )
        self.driver = Driver(lambda: enter(context.ptr), lambda: leave(context.ptr))
        self.multiprocessors = int(context.numprocs)
        self._stream = int(stream_of(context.ptr) or 0)

    def buffer(self, values: Array) -> _Buffer:
        return _Buffer(gpuarray.array(values, context=self._context))

    def zeros(self, size: int, dtype: str) -> _Buffer:
        return _Buffer(gpuarray.zeros((size,), dtype, context=self._context))

    def change(self, arrays: Sequence[GpuArray], queue: Queue, may_wait: bool = False) -> None:
        """Queue a kernel, which its arguments order, on any stream."""
        queue([int(array.gpudata) for array in arrays], 0)

    def compile(self, name: str, source: Source, types: Types, arrays: int) -> _Kernel:
        """Compile a kernel with the arrays as unused arguments, which order the work."""
        given = [GpuArray if type_ is None else np.dtype(type_) for type_ in types]
        have_double = "float64" in types
        return _Kernel(self._kernel(source(arrays), name, [*given, *[GpuArray] * arrays], have_double))

    @contextlib.contextmanager
    def in_order(self, one: GpuArray, other: GpuArray) -> Iterator[int]:
        """Yield a stream ordered after earlier work on two arrays and before later work."""
        # libgpuarray hides the events of arrays. An empty kernel on each side makes the stream wait
        # for them and records new ones.
        self._touch(one, other, gs=1, ls=1)
        yield self._stream
        self._touch(one, other, gs=1, ls=1)

    @functools.cached_property
    def _touch(self) -> GpuKernel:
        return self._kernel(_TOUCH, "touch", [GpuArray, GpuArray], have_double=False)

    def _kernel(self, source: str, name: str, types: Sequence[Any], have_double: bool) -> GpuKernel:
        try:
            return GpuKernel(source, name, types, context=self._context, have_double=have_double, cuda=True)
        except gpuarray.GpuArrayException as exc:
            raise BackendUnavailableError(f"libgpuarray could not compile a kernel for this device: {exc}") from exc


class _Buffer:
    def __init__(self, array: GpuArray) -> None:
        self.array = array
        self.address = int(array.gpudata)

    def write(self, values: Array, stream: int | None = None) -> None:
        self.array.write(values)

    def read(self) -> Array:
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
def pygpu_runtime(context: Any) -> PygpuRuntime:
    """Return the runtime of a pygpu context, shared by all users."""
    return PygpuRuntime(context)
