"""The rounds of an outer-step rule at the center on the host, stripe by stripe.

A round is three steps of each worker, see `platoon_base.worker.rounds`: it adds its progress to the stripes, meets the
others, and takes the stripes over. The first worker that comes to a stripe after the meeting makes the rule's outer
step there. A worker that dies leaves its stripes to the others.

Rounds do not mix. A worker adds to a stripe only if the stripe's values are those that it took over there: the stripe's
generation tells. So whoever adds to a stripe for the next round has brought it to this round before, by itself taking
it over. A stripe's round number tells whether its step was made. The count of contributions is the stripe's own: if a
worker dies in the midst of adding, the mean of each stripe is over those that reached it.

All that is done to a stripe here is done under its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.round_kernels import RoundKernels, blocks
from platoon_base.rules.outer import OuterRule

__all__ = ["WORDS", "Rounds", "StripeArrays"]

Array = np.ndarray[Any, Any]

# Beside the lock of each stripe: the latest round whose step was made; how often the values were changed; contributions
# to the next step, and the sum of their parts; elements of the step under way that are done.
WORDS = [("round", "u4"), ("generation", "u4"), ("count", "u4"), ("unused", "u4"), ("parts", "f8"), ("done", "u8")]

_NOWHERE = -1  # no generation: what this worker has does not come from the stripe as it is


class StripeArrays(NamedTuple):
    """The memory of one stripe: its words, and for each of its pieces the center, the total, and the rule's states."""

    words: Any
    center: list[Array]
    total: list[Array]
    states: list[tuple[Array, ...]]


class Rounds:
    """One worker's view of the rounds.

    Parameters
    ----------
    stripes : sequence of StripeArrays
    """

    def __init__(self, stripes: Sequence[StripeArrays]) -> None:
        self._stripes = list(stripes)
        self._kernels = [[RoundKernels(*piece) for piece in zip(s.center, s.total, s.states)] for s in stripes]
        self._begun = [_NOWHERE] * len(self._stripes)  # the generations that this worker's parameters began from
        self._read = list(self._begun)

    def contribute(self, index: int, local: Sequence[Array], part: float) -> tuple[int, int] | None:
        """Add ``x - c`` to a stripe's total, if this worker's parameters began from what the stripe holds.

        Returns
        -------
        (piece, element) of the first element that was left out, since its total would not be finite, or None.
        """
        words = self._stripes[index].words
        if self._begun[index] != words["generation"]:
            return None
        self._begun[index] = _NOWHERE  # a second time it would count twice
        # First, and in this order: if this worker dies in the midst of it, mean and part are too small, not too large.
        words["count"] += 1
        words["parts"] += part
        refused = [(piece, k.contribute(x)) for piece, (k, x) in enumerate(zip(self._kernels[index], local))]
        return next(((piece, element) for piece, element in refused if element is not None), None)

    def take_over(self, index: int, rule: OuterRule, local: Sequence[Array], number: int) -> tuple[int, int] | None:
        """Make the outer step of round ``number`` on a stripe unless it is made, and take the values over.

        Returns
        -------
        (piece, element) of the first center value that would not have been finite, or None. Such elements, with the
        rule's states, stay as they were.
        """
        words, center, _, _ = self._stripes[index]
        first = self._step(index, rule, number) if words["round"] < number else None
        for x, c in zip(local, center):
            np.copyto(x, c)
        self._begun[index] = int(words["generation"])
        return first

    def _step(self, index: int, rule: OuterRule, number: int) -> tuple[int, int] | None:
        words = self._stripes[index].words
        first, count, done = None, int(words["count"]), 0
        part = float(words["parts"]) / count if count else 0.0
        for piece, center in enumerate(self._stripes[index].center if count else ()):
            for block in blocks(center.size):
                done += block.stop - block.start
                if done <= words["done"]:  # by a worker that died in the midst of it
                    continue
                refused = self._kernels[index][piece].step(rule, block, count, part)
                words["done"] = done
                if refused is not None and first is None:
                    first = (piece, refused)
        # In this order: whoever goes on after a death between two of them makes no step twice, and leaves none out.
        words["count"] = 0
        words["done"] = 0
        words["parts"] = 0
        words["generation"] += 1
        words["round"] = number
        return first

    def note_read(self, index: int) -> None:
        """Take note that a stripe was copied; see `begin`."""
        self._read[index] = int(self._stripes[index].words["generation"])

    def begin(self) -> None:
        """Take note that this worker's parameters are now what was read, or written, last."""
        self._begun = list(self._read)

    def note_changed(self, index: int) -> None:
        """Take note that this worker has changed a stripe otherwise, while no other took part."""
        words = self._stripes[index].words
        words["generation"] += 1
        self._begun[index] = int(words["generation"])

    def write(self, index: int, values: Sequence[Array]) -> None:
        """Put values into a stripe; progress made from others counts no more."""
        words, center, total, _ = self._stripes[index]
        if not all(np.array_equal(c, value) for c, value in zip(center, values)):
            words["generation"] += 1
            words["count"] = 0
            words["parts"] = 0
            words["done"] = 0  # of a step that a worker died in
            for c, t, value in zip(center, total, values):
                t[...] = 0
                np.copyto(c, value)
        self._read[index] = self._begun[index] = int(words["generation"])
