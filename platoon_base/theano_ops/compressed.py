"""All-reduce through float16 that adds rounding errors to later calls (error feedback)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import theano
from theano import tensor

from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops.base import JobBound
from platoon_base.theano_ops.reductions import AllReduceSum, all_reduce
from platoon_base.worker.handle import Worker

__all__ = ["BLOCK", "Float16Sum", "all_reduce_float16"]

# Elements that share a quantum. A float32 quantum for 64 elements adds 3 % to the bytes sent.
BLOCK = 64
# Float16 represents all integers up to this one, and all sums that stay below.
_EXACT = 2048
# Range of a block's maximum that keeps each quantum within float32.
_SMALLEST, _GREATEST = 2.0**-100, 2.0**120


class Float16Sum(AllReduceSum):
    """`AllReduceSum` of float32 values that float16 represents exactly, and that travel as such."""

    # No variable of the graph is float16, as Theano computes with it on the host in Python.
    # The graph around it contains the number of workers, so it does not fit another job.
    __reduce__ = JobBound.__reduce__

    def fusion_key(self) -> Any:
        return None

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        return [self._summed(value) for value in values]

    def _summed(self, value: Any) -> Any:
        # A value overflows only if it, or another one in its block, was not finite.
        with np.errstate(over="ignore"):
            wire = value.astype("float16")
        self.worker.all_reduce(wire, "sum", dest=wire)
        return wire.astype(value.dtype)


def all_reduce_float16(
    variables: Sequence[Any], shapes: Sequence[tuple[int, ...]], average: bool, worker: Worker
) -> list[Any]:
    """Sum or average variables over the workers through float16; each worker keeps the remainder.

    ::

        v_i := g_i + e_i
        q   := max_i 2^ceil(log2(max |v_i| / L))    for each 64 elements, L = floor(2048 / N)
        s_i := float16(round(v_i / q))              integers, |s_i| <= L
        e_i := v_i - q s_i
        y   := q sum_i s_i          (or 1/N q sum_i s_i)

    As multiples of a common quantum q, the sums are exact in float16, in any order, so the error
    never exceeds what the workers keep, ``|e_i| <= q/2``. Plain float16 sums would be rounded again
    without a remainder. With N workers a value has ``12 - log2(N)`` bits.

    Every compiled function that contains the result updates e_i. A block with a NaN or an infinity
    becomes NaN, and its e_i restart from 0. Shapes must not change, and the job must have several
    workers.

    Sources: Seide et al.: 1-bit stochastic gradient descent, Interspeech 2014 (error feedback);
    Köster et al.: Flexpoint, NIPS 2017 (common exponents).
    """
    size = worker.global_size
    limit = _EXACT // size
    if not limit:
        raise ConfigurationError(f"got {size} workers: float16 holds exact sums for {_EXACT} at most; leave it out")
    sizes = [int(np.prod(shape)) for shape in shapes]
    rows = sum(_rows(n) for n in sizes)
    residual = theano.shared(np.zeros((rows, BLOCK), "float32"), name="kept for the next all-reduce")

    v = _blocks(variables, sizes) + residual
    greatest = tensor.clip(abs(v).max(axis=1), np.float32(_SMALLEST), np.float32(_GREATEST))
    exponent = tensor.ceil(tensor.log2(greatest / np.float32(limit)))
    (quantum,) = all_reduce(tensor.exp2(exponent), op="max", worker=worker)
    quantum = quantum.dimshuffle(0, "x")
    sent = tensor.round(v / quantum, mode="half_away_from_zero")
    total = Float16Sum(worker)(sent)

    kept = v - quantum * sent
    residual.default_update = tensor.switch(tensor.isnan(kept) + tensor.isinf(kept), np.float32(0), kept)
    result = total * (quantum / np.float32(size if average else 1))
    return _unblocked(result, variables, shapes, sizes)


def _rows(size: int) -> int:
    return -(-size // BLOCK)


def _blocks(variables: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Concatenate variables, each from the start of a block, so that they share no quantum."""
    parts = []
    for variable, size in zip(variables, sizes):
        parts.append(tensor.cast(variable.flatten(), "float32"))
        if size % BLOCK:
            parts.append(tensor.zeros((BLOCK - size % BLOCK,), "float32"))
    return tensor.concatenate(parts).reshape((sum(map(_rows, sizes)), BLOCK))


def _unblocked(
    blocks: Any, variables: Sequence[Any], shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> list[Any]:
    results, row = [], 0
    for variable, shape, size in zip(variables, shapes, sizes):
        flat = blocks[row : row + _rows(size)].flatten()[:size]
        results.append(variable.type.filter_variable(tensor.cast(flat.reshape(shape), variable.dtype)))
        row += _rows(size)
    return results


# As in the package's __init__, only with a device.
if getattr(sys.modules.get("theano.gpuarray"), "pygpu_activated", False):
    import platoon_base.theano_ops.compressed_gpu  # noqa: F401
