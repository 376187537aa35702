"""Weighted averages of arrays over workers, within a program of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from platoon_base.jax_arrays.calls import call_on_stream

_WIDE = np.dtype(np.float64)
_NARROW = np.dtype(np.float32)


def sum_over_workers(
    arrays: Sequence[Any],
    weight: Any,
    header: Any,
    weights: slice,
    queue: Any,
    compressed: Any = None,
    *,
    is_sum: bool = False,
    idle: bool = False,
) -> list[Any]:
    """Return the averages of floats, weighted by ``weight``, or their sums.

    ``queue(blocks, stream)`` queues the sums of flat buffers over the workers. The last one ends
    with the ``header``, whose slice ``weights`` is zero but for this worker's weight. With
    ``compressed``, a handler of flat buffers too, the header is summed first, by itself; with
    ``idle`` nothing follows, outside of programs, if all weights are zero.
    """
    wide = [i for i, array in enumerate(arrays) if array.dtype == _WIDE]
    narrow = [i for i, array in enumerate(arrays) if array.dtype != _WIDE]
    kinds = [(wide, _WIDE), (narrow, _NARROW)] if wide else [(narrow, _NARROW)]
    flats = [_flat([arrays[i] for i in indices], weight, dtype) for indices, dtype in kinds]
    divisor: Any = None
    if compressed is not None:
        # After an array: otherwise XLA may make this call once for all steps of a loop.
        (header,) = call_on_stream(queue, [header], after=arrays[:1])
        if idle and not np.asarray(header[weights]).any():
            # Nobody uses this result, so residuals would be lost.
            return list(arrays)
        # Divide first: residuals are of averages.
        if not is_sum:
            flats = [flat / _total(header[weights]).astype(flat.dtype) for flat in flats]
        sums = call_on_stream(compressed, flats, after=[header])
    else:
        sums = call_on_stream(queue, [*flats[:-1], jnp.concatenate([flats[-1], header])])
        if not is_sum:
            divisor = _total(sums[-1][-header.size :][weights])
    found: list[Any] = [None] * len(arrays)
    for flat, (indices, _) in zip(sums, kinds):
        starts = np.cumsum([0, *(arrays[i].size for i in indices)]).tolist()
        for i, start, end in zip(indices, starts, starts[1:]):
            part = flat[start:end].reshape(arrays[i].shape)
            part = part if divisor is None else part / divisor.astype(part.dtype)
            found[i] = part.astype(arrays[i].dtype)
    return found


def _total(weights: Any) -> Any:
    total = weights.sum()
    return jnp.where(total == 0, 1, total)


def _flat(arrays: Sequence[Any], weight: Any, dtype: Any) -> Any:
    if not arrays:
        return jnp.zeros(0, dtype)
    flat = jnp.concatenate([array.astype(dtype).ravel() for array in arrays])
    # Without weight, a NaN does not count either.
    return jnp.where(weight != 0, flat * jnp.asarray(weight, dtype), 0)
