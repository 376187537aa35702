"""The kernels of a center on devices, compiled by libgpuarray."""

from __future__ import annotations

from typing import Any

import numpy as np
from pygpu.gpuarray import GpuArray, GpuKernel

from platoon_base.centers.device_forms import Form, Operation
from platoon_base.centers.device_source import kernel_source

__all__ = ["MOST_PARAMETERS", "compile_kernel"]

MOST_PARAMETERS = 400  # of one launch: CUDA passes 4 KB of arguments


def compile_kernel(
    name: str, form: Form, operation: Operation, dtype: np.dtype[Any], parameters: int, context: Any, lock_ns: int
) -> GpuKernel:
    """Compile the kernel that `kernel_source` writes."""
    source = kernel_source(name, form, operation, dtype, parameters, lock_ns)
    u64, u32 = np.dtype("uint64"), np.dtype("uint32")
    scalars, arrays = [dtype] * len(operation.scalars), [GpuArray] * parameters
    types = [GpuArray, GpuArray, u64, u64, u32, GpuArray, u64, *scalars, *arrays]
    return GpuKernel(source, name, types, context=context, have_double=dtype == np.float64, cuda=True)
