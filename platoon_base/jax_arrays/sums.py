"""Weighted averages of arrays over workers, within a program of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from platoon_base.collectives.weighted import WeightedAverage
from platoon_base.jax_arrays.calls import call_on_stream

_WIDE = np.dtype(np.float64)
_NARROW = np.dtype(np.float32)


def sum_over_workers(
    arrays: Sequence[Any],
    weight: Any,
    place: tuple[int, int],
    queue: Any,
    compressed: Any = None,
    *,
    numbers: Sequence[Any] = (),
    is_sum: bool = False,
    idle: bool = False,
) -> list[Any]:
    """Return the averages of floats, weighted by ``weight``, or their sums.

    ``queue(blocks, stream)`` queues the sums of flat buffers over the workers. The last one ends
    with the header: the weights of all, of which ``place`` is this worker's index and their number,
    and ``numbers``, arrays. With ``compressed``, a handler of flat buffers too, the header is summed
    first, by itself; with ``idle`` nothing follows, outside of programs, if all weights are zero.
    """
    wide = [i for i, array in enumerate(arrays) if array.dtype == _WIDE]
    narrow = [i for i, array in enumerate(arrays) if array.dtype != _WIDE]
    kinds = [(wide, _WIDE), (narrow, _NARROW)] if wide else [(narrow, _NARROW)]
    rank, size = place
    weights = jnp.zeros(size, np.float32).at[rank].set(weight)
    header = jnp.concatenate([weights, *(jnp.asarray(each, np.float32) for each in numbers)])
    average = _Average(header, size, kinds[0][1], None if compressed is None else queue, arrays[:1])
    average.begin(weight, is_sum, not idle)
    if average.idle:
        return list(arrays)
    flats = [_flat([arrays[i] for i in indices], weight, average.factor, dtype) for indices, dtype in kinds]
    if compressed is not None:
        sums = call_on_stream(compressed, flats, after=[average.header])
    else:
        sums = call_on_stream(queue, [*flats[:-1], jnp.concatenate([flats[-1], header])])
        average.header = sums[-1][-header.size :]
    rest = average.rest()
    found: list[Any] = [None] * len(arrays)
    for flat, (indices, _) in zip(sums, kinds):
        starts = np.cumsum([0, *(arrays[i].size for i in indices)]).tolist()
        for i, start, end in zip(indices, starts, starts[1:]):
            part = flat[start:end].reshape(arrays[i].shape)
            found[i] = (part * jnp.asarray(rest, part.dtype)).astype(arrays[i].dtype)
    return found


class _Average(WeightedAverage):
    def __init__(self, header: Any, size: int, dtype: Any, queue: Any, after: Sequence[Any]) -> None:
        self.header, self._size, self._dtype, self._queue, self._after = header, size, dtype, queue, after
        self.compresses = queue is not None

    def exchange_header(self) -> None:
        # After an array: otherwise XLA may make this call once for all steps of a loop.
        (self.header,) = call_on_stream(self._queue, [self.header], after=self._after)

    def weights(self) -> Any:
        return self.header[: self._size].astype(self._dtype).sum()

    def nonzero(self, weights: Any) -> Any:
        return jnp.where(weights == 0, 1, weights)


def _flat(arrays: Sequence[Any], weight: Any, factor: Any, dtype: Any) -> Any:
    if not arrays:
        return jnp.zeros(0, dtype)
    flat = jnp.concatenate([array.astype(dtype).ravel() for array in arrays])
    # Without weight, a NaN does not count either.
    return jnp.where(weight != 0, flat * jnp.asarray(factor, dtype), 0)
