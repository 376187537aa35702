"""The dtypes that the library supports, from which all tables of back ends are made, and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Weights and gradients on every back end.
FLOATS = ("float16", "float32", "float64")
# All back ends of collective calls take these. The codes of _reductions.h have the same order.
COLLECTIVE = (*FLOATS, "int8", "int32", "int64", "uint8")
# NCCL sums bfloat16 too, for which NumPy has no dtype. The numbers are those of ncclDataType_t.
NCCL_CODES = {
    "int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
DEVICE_FLOATS = (*FLOATS, "bfloat16")
# Parameters in shared memory of the host.
SHARED = (*FLOATS, "longdouble", "float128")
# Loops of the rules in C and CUDA, and the type of one element there.
C_TYPES = {"float32": "float", "float64": "double"}
# Values of XLA_FFI_DataType.
XLA_CODES = {"float16": 10, "float32": 11, "float64": 12}
# Dtypes of NumPy itself. Others, such as bfloat16, are of ml_dtypes and have no buffers.
PLAIN = (*COLLECTIVE, "bool", "int16")


def sum_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are summed: float32 for float16, else itself."""
    dtype = np.dtype(dtype)
    return np.dtype("float32") if dtype == np.float16 else dtype


def add_up(sources: Sequence[Array], out: Array) -> None:
    """Set ``out`` to the sum of arrays, in their order; half precision is added in float32.

    The caller ignores overflows, by `numpy.errstate`.
    """
    wide = sum_dtype(out.dtype)
    total = out if out.dtype == wide else np.empty(out.shape, wide)
    if len(sources) < 2:
        total[...] = sources[0] if sources else 0
    else:
        np.add(sources[0], sources[1], out=total, dtype=wide)
    for source in sources[2:]:
        np.add(total, source, out=total, dtype=wide)
    if total is not out:
        out[...] = total
