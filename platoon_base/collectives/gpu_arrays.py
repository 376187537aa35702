"""Collectives on pygpu's GpuArrays, on CUDA devices by NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from pygpu import gpuarray
from pygpu.elemwise import GpuElemwise, arg
from pygpu.gpuarray import dtype_to_typecode

from platoon_base.collectives.base import (
    Collective,
    canonical_op,
    canonical_root,
    require_dtype,
    require_fit,
    result_shape,
)
from platoon_base.collectives.nccl_group import NcclGroup
from platoon_base.device_arrays import is_device_array
from platoon_base.devices.pygpu_runtime import PygpuRuntime
from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import assign

_DTYPES = {dtype_to_typecode(name): name for name in COLLECTIVE}


# pygpu's own collectives are not used: their wait for a dead rank could not be ended.
class NcclArrays(Collective):
    """One rank of a group of CUDA devices; calls are queued on the stream of the context."""

    stays_on_device = True  # See `Advanced.stays_on_device`.

    def __init__(self, group: NcclGroup, runtime: PygpuRuntime, context: Any) -> None:
        self.rank, self.size, self.compresses = group.rank, group.size, group.compresses
        self._group, self._runtime, self._context = group, runtime, context
        self._flag: Any = None

    def all_reduce(
        self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float, feedback: Any = None
    ) -> Any:
        name = canonical_op(op)
        # Calls in place, as in every training step, skip most checks, which cost microseconds.
        if out is not array or array.typecode not in _DTYPES or not array.flags.c_contiguous:
            array, out = self._prepared(array, out, array.shape)
        if array.size:
            self._combine(self._group.all_reduce, array, array.size, name, out, timeout_s, feedback)
        return out

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float) -> Any:
        root = canonical_root(root, self.size)
        source, _ = self._prepared(array, array, array.shape)
        if source.size:
            dtype = _DTYPES[source.typecode]
            with self._runtime.in_order(source, source) as stream:
                self._group.broadcast(int(source.gpudata), source.size, dtype, root, stream, timeout_s)
            if source is not array:
                assign(array, source)
        return array

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float) -> Any:
        array, out = self._prepared(array, out, (self.size, *array.shape))
        if array.size:
            dtype = _DTYPES[array.typecode]
            with self._runtime.in_order(array, out) as stream:
                addresses = int(array.gpudata), int(out.gpudata)
                self._group.all_gather(*addresses, array.size, dtype, stream, timeout_s)
        return out

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        name = canonical_op(op)
        array, out = self._prepared(array, out, result_shape("reduce_scatter", array.shape, self.size))
        if array.size:
            self._combine(self._group.reduce_scatter, array, out.size, name, out, timeout_s)
        return out

    def barrier(self, *, timeout_s: float) -> None:
        if self._flag is None:
            self._flag = gpuarray.zeros((1,), "float32", context=self._context)
        self.all_reduce(self._flag, "max", self._flag, timeout_s=timeout_s)
        np.asarray(self._flag)

    def close(self) -> None:
        """Wait for queued calls, unless the group is broken, and release the communicator."""
        self._group.close()

    def _prepared(self, array: Any, out: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
        require_dtype(array)
        if out is None:
            out = gpuarray.empty(shape, array.dtype, context=self._context)
        elif not is_device_array(out) or out.context.ptr != self._context.ptr:
            raise ConfigurationError(f"got {type(out).__name__} for the result: pass a GpuArray on the array's device")
        elif out is not array or out.shape != shape:
            require_fit(out, shape, array.dtype)
        if not array.flags.c_contiguous:
            array = array.copy("C")
        if not out.flags.c_contiguous:
            raise ConfigurationError("got an array that is not C-contiguous for the result: pass a C-contiguous one")
        return array, out

    def _combine(
        self, call: Callable[..., None], array: Any, count: int, op: str, out: Any, timeout_s: float, *feedback: Any
    ) -> None:
        """Queue a combination that leaves ``count`` elements on each rank."""
        asked = "sum" if op == "mean" else op
        with self._runtime.in_order(array, out) as stream:
            addresses = int(array.gpudata), int(out.gpudata)
            call(*addresses, count, _DTYPES[array.typecode], asked, stream, timeout_s, *feedback)
        if op == "mean":
            _divider(out.context, out.dtype)(out, self.size)


@functools.cache
def _divider(context: Any, dtype: Any) -> Callable[[Any, int], None]:
    """Compile ``value := value / ranks``; integers are rounded toward zero as in C."""
    scalar = "int32" if dtype.kind in "iu" else "float64" if dtype == np.float64 else "float32"
    operands = [arg("value", dtype, scalar=False, read=True, write=True), arg("ranks", scalar, scalar=True)]
    compiled: Callable[[Any, int], None] = GpuElemwise(context, "value = value / ranks", operands, convert_f16=True)
    return compiled
