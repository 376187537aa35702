"""Collectives on pygpu's GpuArrays, on CUDA devices by NCCL."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from pygpu import gpuarray
from pygpu.elemwise import GpuElemwise, arg
from pygpu.gpuarray import dtype_to_typecode

from platoon_base.collectives.base import require_dtype, require_fit
from platoon_base.collectives.nccl_group import NcclCollective, NcclGroup
from platoon_base.device_arrays import is_device_array
from platoon_base.devices.pygpu_runtime import PygpuRuntime
from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import ConfigurationError

_DTYPES = {dtype_to_typecode(name): name for name in COLLECTIVE}


# pygpu's own collectives are not used: their wait for a dead rank could not be ended.
class NcclArrays(NcclCollective):
    """Arrays of one context, in the order of its stream."""

    def __init__(self, group: NcclGroup, runtime: PygpuRuntime, context: Any) -> None:
        super().__init__(group)
        self._runtime, self._context = runtime, context

    def barrier(self, *, timeout_s: float) -> None:
        np.asarray(self.all_reduce(gpuarray.zeros((1,), "float32", context=self._context), timeout_s=timeout_s))

    def prepared(self, array: Any, out: Any, shape: tuple[int, ...]) -> tuple[Any, Any, str]:
        # Calls in place, as in every training step, skip most checks, which cost microseconds.
        if out is not array or array.typecode not in _DTYPES or array.shape != shape or not array.flags.c_contiguous:
            require_dtype(array)
            if out is None:
                out = gpuarray.empty(shape, array.dtype, context=self._context)
            elif not is_device_array(out) or out.context.ptr != self._context.ptr:
                raise ConfigurationError(
                    f"got {type(out).__name__} for the result: pass a GpuArray on the array's device"
                )
            require_fit(out, shape, array.dtype)
            if not out.flags.c_contiguous:
                raise ConfigurationError(
                    "got an array that is not C-contiguous for the result: pass a C-contiguous one"
                )
            array = array if array.flags.c_contiguous else array.copy("C")
        return array, out, _DTYPES[array.typecode]

    @contextlib.contextmanager
    def memory(self, array: Any, out: Any) -> Iterator[tuple[int, int, int]]:
        with self._runtime.in_order(array, out) as stream:
            yield int(array.gpudata), int(out.gpudata), stream

    def divides(self, dtype: str) -> bool:
        return True

    def divide(self, out: Any) -> None:
        _divider(out.context, out.dtype)(out, self.size)


@functools.cache
def _divider(context: Any, dtype: Any) -> Callable[[Any, int], None]:
    """Compile ``value := value / ranks``; integers are rounded toward zero as in C."""
    scalar = "int32" if dtype.kind in "iu" else "float64" if dtype == np.float64 else "float32"
    operands = [arg("value", dtype, scalar=False, read=True, write=True), arg("ranks", scalar, scalar=True)]
    compiled: Callable[[Any, int], None] = GpuElemwise(context, "value = value / ranks", operands, convert_f16=True)
    return compiled
