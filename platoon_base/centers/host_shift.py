"""Moves of the center by other hosts, which each worker also applies to its own parameters.

Otherwise the workers' elastic pull would undo the moves. Moments are not moved: a worker's second
moment that is smaller than the center's could become negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.centers.stripes import Stripe, cut
from platoon_base.dtypes import sum_dtype
from platoon_base.layout import Layout

__all__ = ["Shift", "wide"]

Array = np.ndarray[Any, Any]


def wide(layout: Layout) -> Layout:
    """Return the layout of the sum of moves: float32 where half precision would lose small ones."""
    return Layout(tuple(spec._replace(dtype=sum_dtype(spec.dtype).name) for spec in layout.trained.specs))


class Shift:
    """Sum of all moves, in shared memory, and the part of it that this worker has applied."""

    def __init__(self, layout: Layout, total: list[Array], remembering: list[list[Array]]) -> None:
        self._total = total
        self._seen = wide(layout).empty()
        self._remembering = remembering
        self._counts: dict[int, int] = {}

    def begin(self, stripe: Stripe) -> None:
        """Mark the current sum as applied: this worker has just read the center."""
        self._counts[stripe.index] = int(stripe.holder["shifts"])
        pieces = stripe.without_moments
        for seen, total in zip(cut(self._seen, pieces), cut(self._total, pieces)):
            np.copyto(seen, total)

    def follow(self, stripe: Stripe, arrays: Sequence[Array]) -> None:
        """Apply the outstanding moves to this worker's parameters and remembering states."""
        count = int(stripe.holder["shifts"])
        if count == self._counts.get(stripe.index):
            return
        if stripe.index not in self._counts:
            self.begin(stripe)
            return
        self._counts[stripe.index] = count
        pieces = stripe.without_moments
        remembering = [cut(state, pieces) for state in self._remembering]
        for i, (seen, total) in enumerate(zip(cut(self._seen, pieces), cut(self._total, pieces))):
            moved = (total - seen).astype(arrays[i].dtype, copy=False)
            np.copyto(seen, total)
            arrays[i] += moved
            for state in remembering:
                state[i] += moved

    def move(self, stripe: Stripe, by: Sequence[Array]) -> None:
        """Move the center's part of a stripe, and add the move to the sum."""
        pieces = stripe.without_moments
        for center, total, moved in zip(stripe.center, cut(self._total, pieces), cut(by, pieces)):
            center += moved
            total += moved
        stripe.holder["shifts"] += 1

    def move_to(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Move the center's part of a stripe to ``values``, and add the move to the sum."""
        pieces = stripe.without_moments
        for center, total, value in zip(stripe.center, cut(self._total, pieces), cut(values, pieces)):
            total += value.astype(total.dtype, copy=False) - center
            np.copyto(center, value)
        stripe.holder["shifts"] += 1
