"""Moves of the center by other hosts: its workers move along, each at its next visit.

Without it the springs of the workers would pull a center that was moved back to where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.centers.stripes import Stripe, cut
from platoon_base.layout import Layout

__all__ = ["Shift", "wide"]

Array = np.ndarray[Any, Any]


def wide(layout: Layout) -> Layout:
    """Return the layout of sums of moves: half-precision numbers would lose small ones beside a large sum."""
    return Layout(
        tuple(spec._replace(dtype="float32") if np.dtype(spec.dtype).itemsize < 4 else spec for spec in layout.specs)
    )


class Shift:
    """The sum of all moves, in shared memory beside the center, and what one worker has seen of it.

    Parameters
    ----------
    layout : Layout
    total : list of ndarray
        The sum, one array for each parameter, see `wide`.
    remembering : list of list of ndarray
        The worker's buffers that remember the center, and so move with it.
    """

    def __init__(self, layout: Layout, total: list[Array], remembering: list[list[Array]]) -> None:
        self._total = total
        self._seen = wide(layout).empty()
        self._remembering = remembering
        self._counts: dict[int, int] = {}

    def begin(self, stripe: Stripe) -> None:
        """Take the present sum as seen: this worker has just read the center."""
        self._counts[stripe.index] = int(stripe.holder["shifts"])
        for seen, total in zip(cut(self._seen, stripe.pieces), cut(self._total, stripe.pieces)):
            np.copyto(seen, total)

    def follow(self, stripe: Stripe, arrays: Sequence[Array]) -> None:
        """Move a worker's part of a stripe by what it has not seen yet."""
        count = int(stripe.holder["shifts"])
        if count == self._counts.get(stripe.index):
            return
        if stripe.index not in self._counts:
            self.begin(stripe)
            return
        self._counts[stripe.index] = count
        remembering = [cut(state, stripe.pieces) for state in self._remembering]
        for i, (seen, total) in enumerate(zip(cut(self._seen, stripe.pieces), cut(self._total, stripe.pieces))):
            moved = (total - seen).astype(arrays[i].dtype, copy=False)
            np.copyto(seen, total)
            arrays[i] += moved
            for state in remembering:
                state[i] += moved

    def move(self, stripe: Stripe, by: Sequence[Array]) -> None:
        """Move the center's part of a stripe, and let the workers know."""
        for center, total, moved in zip(stripe.center, cut(self._total, stripe.pieces), by):
            center += moved
            total += moved
        stripe.holder["shifts"] += 1

    def move_to(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Move the center's part of a stripe to values, and let the workers know."""
        for center, total, value in zip(stripe.center, cut(self._total, stripe.pieces), values):
            total += value.astype(total.dtype, copy=False) - center
            np.copyto(center, value)
        stripe.holder["shifts"] += 1
