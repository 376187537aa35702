"""Sums of small arrays over all workers that still take part, through the controller."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.channels.client import ControlClient
from platoon_base.coordination.messages import MAX_VECTOR_BYTES, Sum, Sums
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.layout import require_plain
from platoon_base.metrics import VECTOR_ITEM_BYTES, Pairs

Shape = tuple[int, ...]

_PART = MAX_VECTOR_BYTES // VECTOR_ITEM_BYTES


class Summed(NamedTuple):
    """A sum over workers, the same on all; ``ranks`` contributed, ``stop`` is why the job stops."""

    arrays: list[Array]
    pairs: Pairs
    ranks: list[int]
    stop: str


def sum_arrays(
    client: ControlClient,
    name: str,
    arrays: Sequence[Any],
    pairs: Mapping[str, tuple[float, float]] | None,
    timeout_s: float,
    *,
    skips_late: bool = False,
) -> Summed:
    """Add arrays and pairs over all workers that still take part; see `Advanced.sum_arrays`."""
    shapes, vector = _flatten(arrays)

    def add(title: str, pairs: Pairs, part: Array) -> Sums:
        call = Sum(
            name=title, pairs=pairs, vector=part.tobytes(), shapes=shapes, skips_late=skips_late, timeout_s=timeout_s
        )
        return client.wait_for_all(call, Sums)

    plain = {key: (float(total), float(weight)) for key, (total, weight) in (pairs or {}).items()}
    parts = [vector[start : start + _PART] for start in range(0, len(vector), _PART)] or [vector]
    while True:
        first = reply = add(name, plain, parts[0])
        sums = [reply.vector]
        for number, part in enumerate(parts[1:], start=2):
            reply = add(f"{name}, part {number} of {len(parts)}", {}, part)
            if reply.ranks != first.ranks:  # All workers see it and start over.
                break
            sums.append(reply.vector)
        else:
            total = np.frombuffer(b"".join(sums), dtype="<f8")
            return Summed(_unflatten(total, shapes), first.pairs, first.ranks, reply.stop)


def _flatten(arrays: Sequence[Any]) -> tuple[list[Shape], Array]:
    if hasattr(arrays, "dtype"):
        raise ConfigurationError("got one array: pass a list, also for a single array")
    for index, array in enumerate(arrays):
        require_plain(array, f"array {index}")
    taken = [np.asarray(array) for array in arrays]
    for index, array in enumerate(taken):
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"got an array of {array.dtype} at index {index}, whose sum does not fit into "
                "float64: pass floats, integers or bools"
            )
    flat = [array.ravel().astype("<f8") for array in taken]
    return [array.shape for array in taken], np.concatenate(flat) if flat else np.empty(0, dtype="<f8")


def _unflatten(total: Array, shapes: Sequence[Shape]) -> list[Array]:
    found, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        found.append(total[start:stop].astype(np.float64).reshape(shape))
        start = stop
    return found
