"""Agreement of workers on state that no rule shares and no gradient trains, and checksums of values."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.host_kernels import EXTENSION
from platoon_base.device_arrays import CudaArray, CudaContext
from platoon_base.devices.runtime import runtime_of
from platoon_base.dtypes import Array
from platoon_base.errors import BackendUnavailableError, WorkerLostError
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import Variable, copy_to_those_left, copy_values, set_values, values_of

RULES = ("mean", "sum", "first")


class State(NamedTuple):
    """A variable that the workers change, and the rule that determines its common value.

    ::

        v := sum_i w_i v_i / sum_i w_i      "mean"
        v := b + sum_i (v_i - b)            "sum": b is the base, the last common value
        v := v_f                            "first"
    """

    variable: Variable
    rule: str
    base: Array | None = None


def default_rule_of(dtype: Any) -> str:
    """Return "mean" for floats and complex numbers, and "first" for other dtypes."""
    kind = np.dtype(dtype).kind
    return "mean" if kind in "fc" or np.dtype(dtype).name.startswith(("bfloat", "float")) else "first"


def agree(
    states: Sequence[State], worker: Worker, name: str, weight: float = 1.0, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[int]:
    """Set variables to common values; return the ranks that took part; a collective call."""
    taken = [state for state in states if state.rule != "first"]
    copied = [state.variable for state in states if state.rule == "first"]
    values = values_of(state.variable for state in taken)
    terms = [_term(state, value, weight) for state, value in zip(taken, values)]
    pairs = {"weight": (float(weight), 1.0)}
    if copied and weight:
        pairs[str(worker.global_rank)] = (1.0, 1.0)  # This rank counts.
    summed = worker.advanced.sum_arrays(name, terms, pairs, timeout_s=timeout_s)
    total = summed.pairs.pop("weight")[0]
    if not total:
        return summed.ranks
    _set_agreed(taken, values, summed.arrays, total)
    if copied:
        copy_to_those_left(copied, worker, min(map(int, summed.pairs)), f"{name}, of the first", timeout_s=timeout_s)
    return summed.ranks


def agree_in_step(states: Sequence[State], worker: Worker, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Set variables to common values; faster than `agree`, but all launched workers must call."""
    values = values_of(state.variable for state in states)
    taken = [(state, value) for state, value in zip(states, values) if state.rule != "first"]
    copied = [(state, value) for state, value in zip(states, values) if state.rule == "first"]
    if copied:
        flat = np.frombuffer(b"".join(value.tobytes() for _, value in copied), np.uint8).copy()
        worker.broadcast([flat], timeout_s=timeout_s)
        for (state, value), part in zip(copied, _split(flat, [value.nbytes for _, value in copied])):
            state.variable.set_value(part.view(value.dtype).reshape(value.shape).copy())
    if taken:
        terms = [_term(state, value, 1.0) for state, value in taken]
        summed = worker.all_reduce(np.concatenate([np.ones(1), *map(np.ravel, terms)]), timeout_s=timeout_s)
        sums = [part.reshape(term.shape) for term, part in zip(terms, _split(summed[1:], [t.size for t in terms]))]
        _set_agreed([state for state, _ in taken], [value for _, value in taken], sums, summed[0])


def _set_agreed(states: Sequence[State], values: Sequence[Array], sums: Sequence[Array], total: float) -> None:
    """Set variables from the sums of their terms; ``total`` is the sum of the weights."""
    results = (array / (total if state.rule == "mean" else 1) for state, array in zip(states, sums))
    set_values([state.variable for state in states], list(map(_agreed, states, values, results)))


def _split(flat: Array, sizes: Sequence[int]) -> list[Array]:
    return np.split(flat, np.cumsum(sizes)[:-1])


def _term(state: State, value: Array, weight: float) -> Array:
    if not weight:
        return np.zeros_like(_reals(value), np.float64)
    reals: Array = _reals(value).astype(np.float64)
    if state.rule == "mean":
        return reals * weight
    if value.dtype.kind in "iu":  # The result is exact, also for large numbers.
        change: Array = (value - state.base).astype(value.dtype.str.replace("u", "i")).astype(np.float64)
        return change
    base: Array = _reals(np.asarray(state.base)).astype(np.float64)
    return reals - base


def _agreed(state: State, value: Array, result: Array) -> Array:
    """Return a variable's new value, in its dtype, from the mean or the sum of the changes."""
    if state.rule == "sum" and value.dtype.kind in "iu":
        changed: Array = state.base + result.astype(np.int64).astype(value.dtype)
        return changed
    if state.rule == "sum":
        result = result + _reals(np.asarray(state.base)).astype(np.float64)
    if value.dtype.kind == "c":
        result = result.astype(value.real.dtype).view(value.dtype).reshape(value.shape)
    rounded: Array = (np.rint(result) if value.dtype.kind in "iu" else result).astype(value.dtype)
    return rounded


def _reals(value: Array) -> Array:
    return value.reshape(-1).view(value.real.dtype) if value.dtype.kind == "c" else value


def make_equal(
    variables: Sequence[Variable], worker: Worker, name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Copy the first worker's value of each variable that differs; a call of all that are left."""
    sums = np.array(checksums(variables), np.int64)
    halves = np.stack([sums & 0xFFFF, sums >> 16])  # Squares of halves are exact in float64.
    summed = worker.advanced.sum_arrays(name, [halves, halves**2], timeout_s=timeout_s)
    # Numbers are equal if N times the sum of their squares is the square of their sum.
    equal = (len(summed.ranks) * summed.arrays[1] == summed.arrays[0] ** 2).all(axis=0)
    apart = [variable for variable, same in zip(variables, equal) if not same]
    if not apart:
        return
    if len(summed.ranks) == worker.global_size:
        with contextlib.suppress(WorkerLostError):  # The remaining workers copy by the call below.
            copy_values(apart, worker, timeout_s=timeout_s)
            return
    for root in summed.ranks:
        if copy_to_those_left(apart, worker, root, f"{name}, of rank {root}", timeout_s=timeout_s):
            return


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
    sizes = [array.size * array.dtype.itemsize for array in arrays]
    tiles = sum(-(-size // (4 * _WORDS)) for size in sizes)
    given = np.zeros(len(arrays) + 5 * tiles, np.uint64)  # The sums, and the tiles behind them.
    space = _memory(context, given.size)

    def queue(addresses: list[int], stream: int) -> None:
        rows = []
        for index, (address, size) in enumerate(zip(addresses, sizes)):
            words = -(-size // 4)
            rows += [(address, size, at, min(at + _WORDS, words), index) for at in range(0, words, _WORDS)]
        given[len(arrays) :] = np.array(rows, np.uint64).ravel()
        space.write(given, stream)
        blocks = min(tiles, runtime.multiprocessors * _BLOCKS_EACH)
        kernel.launch([space.address + 8 * len(arrays), tiles, space], arrays, stream, blocks, _THREADS)

    arrays[0].read(arrays, queue)
    return [int(total) for total in space.read()[: len(arrays)]]


@functools.lru_cache(16)
def _memory(context: CudaContext, size: int) -> Any:
    """Return memory for words of 64 bits, which is kept: allocation makes a device finish all its work."""
    return runtime_of(context).zeros(size, "uint64")


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
