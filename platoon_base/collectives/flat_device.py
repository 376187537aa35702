"""`flat` on devices: memory of buffers, and on CUDA a kernel that packs many arrays at once.

The copy of one small array costs about 10 us in Python and the driver, and a model has hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pygpu
from pygpu.gpuarray import GpuArray, GpuKernel

from platoon_base.dtypes import C_TYPES

_THREADS = 256
_BLOCKS = 2048  # More blocks would not run at the same time.
_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

# The table holds ``count`` starts, the end of the last array, and ``count`` addresses. Each thread
# finds the array of its first element by bisection, and later ones by stepping forward.
_SOURCE = """
extern "C" __global__ void move_flat(const unsigned long long *table, unsigned long long count, %(type)s *flat) {
    const unsigned long long *starts = table, *addresses = table + count + 1;
    const unsigned long long size = starts[count], stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long low = 0, high = count;
    while (low + 1 < high) {
        unsigned long long middle = (low + high) / 2;
        if (starts[middle] <= i) low = middle; else high = middle;
    }
    %(before)s
    for (; i < size; i += stride) {
        while (starts[low + 1] <= i) ++low;
        %(type)s *element = (%(type)s *)addresses[low] + (i - starts[low]);
        %(body)s
    }
}
"""
_FORMS = {
    "pack": ("", "flat[i] = *element;"),
    "pack counted": ("if (i == 0) flat[size] = 1;", "flat[i] = *element;"),
    "unpack": ("", "*element = flat[i];"),
    "unpack counted": ("const %(type)s ranks = flat[size];", "*element = flat[i] / ranks;"),
}


def empty_like(array: Any, size: int) -> Any:
    return pygpu.empty((size,), array.dtype, context=array.context)


def averages(dtype: Any) -> bool:
    """Return whether values of this dtype can be divided while they are unpacked."""
    return np.dtype(dtype).name in C_TYPES


class Packer:
    """Packs and unpacks arrays of one dtype on one CUDA device, by one kernel each.

    The kernels get addresses, and libgpuarray cannot order them against work in other streams: all
    work on the device must be queued in one stream.
    """

    def __init__(self, like: Any) -> None:
        self._context = like.context
        self._dtype = np.dtype(like.dtype)
        self._compiled: dict[str, Any] = {}
        self._tables: dict[str, tuple[list[int], Any]] = {}

    def pack(self, arrays: Sequence[Any], flat: Any, counted: bool) -> None:
        """Copy C-contiguous arrays into ``flat``, from its start; if counted, append a 1."""
        self._run("pack counted" if counted else "pack", arrays, flat)

    def unpack(self, flat: Any, arrays: Sequence[Any], counted: bool) -> None:
        """Copy ``flat`` into C-contiguous arrays; if counted, divide by its last element."""
        self._run("unpack counted" if counted else "unpack", arrays, flat)

    def _run(self, form: str, arrays: Sequence[Any], flat: Any) -> None:
        # Empty arrays have no address.
        arrays = [array for array in arrays if array.size]
        size = sum(array.size for array in arrays)
        if not size:
            return
        blocks = min(-(-size // _THREADS), _BLOCKS)
        self._kernel(form)(self._table(form, arrays), len(arrays), flat, gs=blocks, ls=_THREADS)

    def _kernel(self, form: str) -> Any:
        if form not in self._compiled:
            plain = _TYPES[self._dtype.itemsize]
            names = {"type": C_TYPES[self._dtype.name] if "counted" in form else plain}
            before, body = (text % names for text in _FORMS[form])
            source = _SOURCE % {**names, "before": before, "body": body}
            self._compiled[form] = GpuKernel(
                source,
                "move_flat",
                [GpuArray, np.dtype("uint64"), GpuArray],
                context=self._context,
                cuda=True,
                have_double=names["type"] == "double",
                have_small=self._dtype.itemsize < 4,
            )
        return self._compiled[form]

    def _table(self, form: str, arrays: Sequence[Any]) -> Any:
        """Return the table of starts and addresses; it is cached, because loops repeat arrays."""
        starts = [0, *np.cumsum([array.size for array in arrays]).tolist()]
        numbers = starts + [array.gpudata for array in arrays]
        kept = self._tables.get(form)
        if kept is None or kept[0] != numbers:
            kept = numbers, pygpu.array(np.array(numbers, "uint64"), context=self._context)
            self._tables[form] = kept
        return kept[1]
