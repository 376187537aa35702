"""All-reduce that sends half the bytes, and makes up for what it rounds away in later calls (error feedback)."""

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

BLOCK = 64  # elements that share a quantum: it costs float32/64 to send, 3 % of the rest
_EXACT = 2048  # all integers up to here are float16 numbers, and so are all sums that stay below
_SMALLEST, _GREATEST = 2.0**-100, 2.0**120  # the range of a block's maximum, in which no quantum leaves float32's


class Float16Sum(AllReduceSum):
    """`AllReduceSum` of float32 values that travel as float16; its user sees to it that float16 holds them.

    Theano computes with float16 on the host element by element in Python, so no variable of the graph is one.
    """

    # The number of workers is in the graph around it: it does not go with another job.
    __reduce__ = JobBound.__reduce__

    def fusion_key(self) -> Any:
        """Return None: values of one call are one array already."""
        return None

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        """Convert, sum, and convert back."""
        return [self._summed(value) for value in values]

    def _summed(self, value: Any) -> Any:
        with np.errstate(over="ignore"):  # what is infinite then was not finite before, or stands beside such a value
            wire = value.astype("float16")
        self.worker.all_reduce(wire, "sum", dest=wire)
        return wire.astype(value.dtype)


def all_reduce_float16(
    variables: Sequence[Any], shapes: Sequence[tuple[int, ...]], average: bool, worker: Worker
) -> list[Any]:
    """Sum or average variables over the workers through float16, each worker keeping what was not sent.

    ::

        v_i := g_i + e_i
        q   := max_i 2^ceil(log2(max |v_i| / L))    for each block of 64 elements, L = floor(2048 / N)
        s_i := float16(round(v_i / q))              integers, |s_i| <= L
        e_i := v_i - q s_i
        y   := q sum_i s_i          (or 1/N q sum_i s_i)

    Float16 numbers as they are would not do: their sum is rounded again on its way through the workers, and of that
    nobody keeps the rest. As multiples of a common quantum their sum is exact in float16, in any order. So what is
    applied differs from what was wanted by no more than what the workers keep, ``|e_i| <= q/2``, however many steps
    are made, and no value is too great or too small for float16. With N workers, a value has ``12 - log2(N)`` bits.

    e_i is one shared variable with a ``default_update``: every compiled function that contains the result changes it.
    A block of 64 in which a value is NaN or infinite becomes NaN as a whole, and its e_i start again from 0.

    Parameters
    ----------
    variables : sequence of Theano variable, of float dtypes
    shapes : sequence of tuple of int
        Of their values, which never change.
    average : bool
        Whether to divide by N.
    worker : Worker
        Of a job of several.

    Returns
    -------
    list of Theano variable
        One for each, of the same dtypes, computed in float32.

    Raises
    ------
    ConfigurationError
        If there are more than 2,048 workers.

    References
    ----------
    Seide et al.: 1-bit stochastic gradient descent, Interspeech 2014 (the feedback). Köster et al.: Flexpoint, NIPS
    2017 (common exponents).
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
    """Lay variables one after the other, each from the start of a block on, so that none shares a quantum."""
    parts = []
    for variable, size in zip(variables, sizes):
        parts.append(tensor.cast(variable.flatten(), "float32"))
        if size % BLOCK:
            parts.append(tensor.zeros((BLOCK - size % BLOCK,), "float32"))
    return tensor.concatenate(parts).reshape((sum(map(_rows, sizes)), BLOCK))


def _unblocked(
    blocks: Any, variables: Sequence[Any], shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> list[Any]:
    """Return the variables' new values: the inverse of `_blocks`."""
    results, row = [], 0
    for variable, shape, size in zip(variables, shapes, sizes):
        flat = blocks[row : row + _rows(size)].flatten()[:size]
        results.append(variable.type.filter_variable(tensor.cast(flat.reshape(shape), variable.dtype)))
        row += _rows(size)
    return results


# As in the package's __init__: there is something to do only where Theano has a device.
if getattr(sys.modules.get("theano.gpuarray"), "pygpu_activated", False):
    import platoon_base.theano_ops.compressed_gpu  # noqa: F401
