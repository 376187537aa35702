"""Checksums of variables, computed where the values are: copies from a device would take longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_kernels import EXTENSION
from platoon_base.device_arrays import CudaArray, CudaContext
from platoon_base.devices.runtime import runtime_of
from platoon_base.errors import BackendUnavailableError

# The sum of a hash of each 32-bit word and its place, modulo 2**64; _kernels.c has the same.
_PLACE, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_TEXT = """
extern "C" __global__ void checksums(const unsigned long long *tiles, unsigned long long count,
                                     unsigned long long *sums)
{
    for (unsigned long long t = blockIdx.x; t < count; t += gridDim.x) {
        const unsigned long long *tile = tiles + 5 * t, size = tile[1];
        const unsigned char *bytes = (const unsigned char *)tile[0];
        unsigned long long sum = 0;
        for (unsigned long long i = tile[2] + threadIdx.x; i < tile[3]; i += blockDim.x) {
            unsigned int word = 0;
            if (4 * i + 4 <= size && tile[0] % 4 == 0)
                word = ((const unsigned int *)bytes)[i];
            else
                for (int k = 0; k < 4 && 4 * i + k < size; k++)
                    word |= (unsigned int)bytes[4 * i + k] << 8 * k;
            unsigned long long hash = (word + i * PLACE) * FIRST;
            sum += (hash ^ hash >> 32) * SECOND;
        }
        for (int other = 16; other; other /= 2)
            sum += __shfl_down_sync(0xffffffff, sum, other);
        if (threadIdx.x % 32 == 0)
            atomicAdd(sums + tile[4], sum);
    }
}
"""
_KERNEL = f"#define PLACE {_PLACE}ULL\n#define FIRST {_FIRST}ULL\n#define SECOND {_SECOND}ULL\n{_TEXT}"
_WORDS = 1 << 14  # In each tile, and in each step on the host.
_THREADS = 256
_BLOCKS_EACH = 8


def checksums(variables: Sequence[Any]) -> list[int]:
    """Return a checksum of each variable's value, 32 bits, the same on the host and on a device."""
    found: list[int | None] = [None] * len(variables)
    by_device: dict[CudaContext, list[tuple[int, CudaArray]]] = {}
    for index, variable in enumerate(variables):
        array = variable.on_device() if hasattr(variable, "on_device") else None
        if isinstance(array, CudaArray) and array.flags.c_contiguous and array.size:
            by_device.setdefault(array.context, []).append((index, array))
    for context, arrays in by_device.items():
        for (index, _), total in zip(arrays, _on_device(context, [array for _, array in arrays])):
            found[index] = total
    totals = [_on_host(v.get_value(borrow=True)) if t is None else t for v, t in zip(variables, found)]
    return [(total ^ total >> 32) & 0xFFFFFFFF for total in totals]


def _on_device(context: CudaContext, arrays: Sequence[CudaArray]) -> list[int | None]:
    try:
        runtime = runtime_of(context)
        kernel = runtime.compile("checksums", lambda _: _KERNEL, [None, "uint64", None], 0)
    except BackendUnavailableError:
        return [None] * len(arrays)
    sums = runtime.zeros(len(arrays), "uint64")

    def queue(addresses: list[int], stream: int) -> None:
        rows = []
        for index, (address, array) in enumerate(zip(addresses, arrays)):
            size = array.size * array.dtype.itemsize
            words = -(-size // 4)
            rows += [(address, size, at, min(at + _WORDS, words), index) for at in range(0, words, _WORDS)]
        tiles = runtime.buffer(np.array(rows, np.uint64).ravel())
        blocks = min(len(rows), runtime.multiprocessors * _BLOCKS_EACH)
        kernel.launch([tiles, len(rows), sums], arrays, stream, blocks, _THREADS)

    arrays[0].read(arrays, queue)
    return [int(total) for total in sums.read()]


def _on_host(value: Any) -> int:
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if EXTENSION is not None:
        return int(EXTENSION.checksum(data.ctypes.data, data.size))
    words = np.pad(data, (0, -data.size % 4)).view("<u4")
    total = 0
    for start in range(0, words.size, _WORDS):
        hashes = words[start : start + _WORDS].astype(np.uint64)
        hashes += np.arange(start, start + hashes.size, dtype=np.uint64) * np.uint64(_PLACE)
        hashes *= np.uint64(_FIRST)
        hashes = (hashes ^ hashes >> np.uint64(32)) * np.uint64(_SECOND)
        total += int(hashes.sum(dtype=np.uint64))
    return total % (1 << 64)
