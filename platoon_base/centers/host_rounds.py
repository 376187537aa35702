"""Rounds of an outer-step rule at the center on the host, stripe by stripe, under its lock.

A worker adds its progress to the totals of the stripes, waits for the other workers, and copies the
stripes. The first worker at a stripe after the wait makes the outer step there. On several hosts,
couriers first replace the totals by the sum over all hosts (`across_hosts`). A worker contributes
to a stripe only if the generation is the one it copied: rounds do not mix. Deaths are harmless: a
contribution is written to the unused totals and made valid by one store, and the step saves each
block before it changes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.host_kernels import RoundKernels, blocks
from platoon_base.centers.stripes import FIRST_PAUSE_S, LONGEST_PAUSE_S, Stripe, cut
from platoon_base.rules.outer import OuterRule
from platoon_base.system.process import awake

__all__ = ["Rounds", "StripeArrays", "open_rounds", "use_other"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_PER_TOTALS = ("count", "parts", "done", "copied", "gathered")

_NO_GENERATION = -1  # This worker's values are not a copy of the stripe.


class StripeArrays(NamedTuple):
    """Memory of one stripe: lists have an array for each piece, ``undo`` is for a saved block."""

    words: Any
    center: list[Array]
    totals: tuple[list[Array], list[Array]]
    states: list[tuple[Array, ...]]
    undo: Array


def open_rounds(
    totals: Sequence[Sequence[Array]],
    undo: Array,
    stripes: Sequence[Stripe],
    states: Sequence[Sequence[Array]],
) -> Rounds:
    """Open the rounds on both totals, the memory for saved blocks, and the rule's states."""
    opened = []
    for stripe in stripes:
        own = [cut(state, stripe.pieces) for state in states]
        each = [tuple(state[i] for state in own) for i in range(len(stripe.pieces))]
        both = cut(totals[0], stripe.pieces), cut(totals[1], stripe.pieces)
        opened.append(StripeArrays(stripe.holder, stripe.center, both, each, undo[stripe.index]))
    return Rounds(opened)


def use_other(words: Any, count: int, parts: float, gathered: int) -> None:
    """Switch to the other totals of a stripe, which are the sum of ``count`` contributions."""
    other = 1 - int(words["in_use"])
    for name, value in zip(_PER_TOTALS, (count, parts, 0, 0, gathered)):
        words[name][other] = value
    words["in_use"] = other  # A single store, which a death cannot interrupt.


class Rounds:
    """One worker's view of the rounds; the caller holds the lock of each stripe it passes."""

    def __init__(self, stripes: Sequence[StripeArrays]) -> None:
        self.stripes = list(stripes)
        self._kernels = [
            [RoundKernels(*piece, s.undo) for piece in zip(s.center, zip(*s.totals), s.states)] for s in stripes
        ]
        self._begun = [_NO_GENERATION] * len(self.stripes)  # Generations this worker copied.
        self._read = list(self._begun)

    def contribute(self, index: int, local: Sequence[Array], part: float) -> tuple[int, int] | None:
        """Add ``x - c`` to a stripe's totals; return the first (piece, element) left out."""
        # Nothing is added if this worker copied another generation, if a dead worker's step is
        # unfinished, or if the round is already closed.
        words = self.stripes[index].words
        used = int(words["in_use"])
        all_have_met = max(int(words["met"]), int(words["gathered"][used])) > words["round"]
        if self._begun[index] != words["generation"] or self._is_half_done(index) or all_have_met:
            return None
        self._begun[index] = _NO_GENERATION  # A second call must not count twice.
        refused = [(piece, k.contribute(x, used)) for piece, (k, x) in enumerate(zip(self._kernels[index], local))]
        self._use_other(index, int(words["count"][used]) + 1, float(words["parts"][used]) + part)
        return next(((piece, element) for piece, element in refused if element is not None), None)

    def note_met(self, index: int, number: int) -> None:
        """Record that all have contributed to round ``number``, whose step is made later."""
        words = self.stripes[index].words
        words["met"] = max(int(words["met"]), number)

    def _use_other(self, index: int, count: int, parts: float) -> None:
        use_other(self.stripes[index].words, count, parts, 0)

    def _is_half_done(self, index: int) -> bool:
        """Return whether the step on a stripe was begun and not finished."""
        words = self.stripes[index].words
        used = int(words["in_use"])
        return bool(words["done"][used] or words["copied"][used])

    def between(self) -> bool:
        """Return whether all stripes are at one round, without half a step; lock all first."""
        numbers = {int(stripe.words["round"]) for stripe in self.stripes}
        return len(numbers) <= 1 and not any(map(self._is_half_done, range(len(self.stripes))))

    def visit_between(
        self,
        visit: Callable[[], object],
        lock_all: Callable[[float], bool],
        free: Callable[[], None],
        patience_s: float,
    ) -> None:
        """Call ``visit`` with all stripes locked between rounds, or after ``patience_s`` with a warning."""
        deadline, pause = awake() + patience_s, FIRST_PAUSE_S
        while True:
            try:
                between = lock_all(deadline) and self.between()
                if between or awake() > deadline:
                    if not between:
                        log.warning(
                            "found no time between two rounds within %g s, so this copy mixes two rounds", patience_s
                        )
                    visit()
                    return
            finally:
                free()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def take_over(self, index: int, rule: OuterRule, local: Sequence[Array], number: int) -> tuple[int, int] | None:
        """Make the outer step on a stripe if needed, and copy the values to ``local``."""
        words, center, *_ = self.stripes[index]
        first = self._step(index, rule, number) if words["round"] < number else None
        for x, c in zip(local, center):
            np.copyto(x, c)
        self._begun[index] = int(words["generation"])
        return first

    def _step(self, index: int, rule: OuterRule, number: int) -> tuple[int, int] | None:
        words = self.stripes[index].words
        used = int(words["in_use"])
        first, count, done = None, int(words["count"][used]), 0
        part = float(words["parts"][used]) / count if count else 0.0
        for piece, center in enumerate(self.stripes[index].center if count else ()):
            for block in blocks(center.size):
                done += block.stop - block.start
                if done <= words["done"][used]:  # Done by a worker that died in the step.
                    continue
                kernels = self._kernels[index][piece]
                if words["copied"][used] == done:  # It died in this block.
                    kernels.put_back(block, used)
                else:
                    kernels.copy(block, used)
                    words["copied"][used] = done
                refused = kernels.step(rule, block, used, count, part)
                words["done"][used] = done
                if refused is not None and first is None:
                    first = (piece, refused)
        # In this order, a death between two lines neither repeats nor skips a step.
        for name in _PER_TOTALS:
            words[name][used] = 0
        words["generation"] += 1
        words["round"] = number
        return first

    def note_read(self, index: int) -> None:
        """Record that a stripe was read or written; see `begin`."""
        self._read[index] = int(self.stripes[index].words["generation"])

    def begin(self) -> None:
        """Record that this worker's parameters equal the stripes last read or written."""
        self._begun = list(self._read)

    def note_changed(self, index: int) -> None:
        """Record that this worker has changed a stripe without a round, as a single worker does."""
        words = self.stripes[index].words
        words["generation"] += 1
        self._begun[index] = int(words["generation"])

    def write(self, index: int, values: Sequence[Array]) -> None:
        """Write values into a stripe; progress from earlier values no longer counts."""
        words, center, *_ = self.stripes[index]
        if not all(np.array_equal(c, value) for c, value in zip(center, values)):
            self.replace(index, values)
        self._read[index] = self._begun[index] = int(words["generation"])

    def replace(self, index: int, values: Sequence[Array]) -> None:
        """Write values into a stripe, and drop the contributions to its next step."""
        words, center, totals, *_ = self.stripes[index]
        words["generation"] += 1
        for total in totals[1 - int(words["in_use"])]:
            total[...] = 0
        self._use_other(index, 0, 0.0)
        for c, value in zip(center, values):
            np.copyto(c, value)
