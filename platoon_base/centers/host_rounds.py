"""The rounds of an outer-step rule at the center on the host, stripe by stripe.

A round is three steps of each worker, see `platoon_base.worker.rounds`: it adds its progress to the stripes, meets the
others, and takes the stripes over. The first worker that comes to a stripe after the meeting makes the rule's outer
step there. A worker that dies leaves its stripes to the others. In a job on several hosts the courier of each host puts
the sum over all hosts in place of the totals, after the meeting and before any step; see
`platoon_base.centers.round_totals`.

Rounds do not mix. A worker adds to a stripe only if the stripe's values are those that it took over there: the stripe's
generation tells. So whoever adds to a stripe for the next round has brought it to this round before, by itself taking
it over. A stripe's round number returns whether its step was made.

A worker that dies leaves nothing half done. The totals of a stripe are kept twice, and with each the number of
contributions: a worker writes the sum with its own into the totals that are not in use, and then makes them the ones in
use, by one store. If it dies before, it has added nothing; the mean of each stripe is over the contributions that
reached it. Before the step changes a block, what the block holds is copied: whoever finishes the step of a worker that
died puts it back first.

All that is done to a stripe here is done under its lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.round_kernels import RoundKernels, blocks, undo_bytes
from platoon_base.centers.stripes import FIRST_PAUSE_S, LONGEST_PAUSE_S, Stripe, cut
from platoon_base.layout import Layout
from platoon_base.rules.outer import OuterRule
from platoon_base.views import array_on

__all__ = ["WORDS", "Rounds", "StripeArrays", "open_rounds", "rounds_bytes", "use_other"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

# Beside the lock of each stripe: the latest round whose step was made; how often the values were changed; the totals
# in use. For each of the two totals: contributions to the next step, and the sum of their parts; elements of the step
# under way that are done; the same with the block whose values are copied; the round of which they are the sum over all
# hosts, 0 for those of this host alone.
WORDS = [
    ("round", "u4"),
    ("generation", "u4"),
    ("in_use", "u4"),
    ("unused", "u4"),
    ("count", "u4", (2,)),
    ("parts", "f8", (2,)),
    ("done", "u8", (2,)),
    ("copied", "u8", (2,)),
    ("gathered", "u4", (2,)),
]
_PER_TOTALS = ("count", "parts", "done", "copied", "gathered")

_NO_GENERATION = -1  # no generation: what this worker has does not come from the stripe as it is


class StripeArrays(NamedTuple):
    """The memory of one stripe.

    Attributes
    ----------
    words : structured scalar
        See `WORDS`.
    center : list of ndarray
        One for each piece of the stripe.
    totals : two lists of ndarray
        Like the center.
    states : list of tuple of ndarray
        For each piece the rule's states beside the center.
    undo : ndarray of uint8
        Room for the copy of a block.
    """

    words: Any
    center: list[Array]
    totals: tuple[list[Array], list[Array]]
    states: list[tuple[Array, ...]]
    undo: Array


def rounds_bytes(layout: Layout, stripe_bytes: int, states: int) -> int:
    """Bytes that the rounds take behind the center and its states."""
    stripes = len(layout.stripes(stripe_bytes))
    return 2 * layout.nbytes + stripes * undo_bytes(layout, states)


def open_rounds(
    buffer: Any, start: int, layout: Layout, stripes: Sequence[Stripe], states: Sequence[Sequence[Array]]
) -> Rounds:
    """Open the rounds whose memory begins at byte ``start`` of a buffer."""
    totals = [layout.views(buffer, start + i * layout.nbytes) for i in range(2)]
    size_bytes = undo_bytes(layout, len(states))
    undo = array_on(buffer, (len(stripes), size_bytes), "uint8", start + 2 * layout.nbytes)
    opened = []
    for stripe in stripes:
        own = [cut(state, stripe.pieces) for state in states]
        each = [tuple(state[i] for state in own) for i in range(len(stripe.pieces))]
        both = cut(totals[0], stripe.pieces), cut(totals[1], stripe.pieces)
        opened.append(StripeArrays(stripe.holder, stripe.center, both, each, undo[stripe.index]))
    return Rounds(opened)


def use_other(words: Any, count: int, parts: float, gathered: int) -> None:
    """Use the other totals of a stripe from here on, as the sum of so many contributions."""
    other = 1 - int(words["in_use"])
    for name, value in zip(_PER_TOTALS, (count, parts, 0, 0, gathered)):
        words[name][other] = value
    words["in_use"] = other  # one store: a death is before it or after it


class Rounds:
    """One worker's view of the rounds.

    Parameters
    ----------
    stripes : sequence of StripeArrays

    Attributes
    ----------
    stripes : list of StripeArrays
    """

    def __init__(self, stripes: Sequence[StripeArrays]) -> None:
        self.stripes = list(stripes)
        self._kernels = [
            [RoundKernels(*piece, s.undo) for piece in zip(s.center, zip(*s.totals), s.states)] for s in stripes
        ]
        self._begun = [_NO_GENERATION] * len(self.stripes)  # the generations that this worker's parameters began from
        self._read = list(self._begun)

    def contribute(self, index: int, local: Sequence[Array], part: float) -> tuple[int, int] | None:
        """Add ``x - c`` to a stripe's total, if this worker's parameters began from what the stripe holds.

        Nothing is added to a step that was begun either: its worker has died, and another one is to finish it.

        Returns
        -------
        (piece, element) of the first element that was left out, since its total would not be finite, or None.
        """
        words = self.stripes[index].words
        if self._begun[index] != words["generation"] or self._is_half_done(index):
            return None
        self._begun[index] = _NO_GENERATION  # a second time it would count twice
        used = int(words["in_use"])
        refused = [(piece, k.contribute(x, used)) for piece, (k, x) in enumerate(zip(self._kernels[index], local))]
        self._use_other(index, int(words["count"][used]) + 1, float(words["parts"][used]) + part)
        return next(((piece, element) for piece, element in refused if element is not None), None)

    def _use_other(self, index: int, count: int, parts: float) -> None:
        """Use the other totals from here on, as the sum of so many contributions."""
        use_other(self.stripes[index].words, count, parts, 0)

    def _is_half_done(self, index: int) -> bool:
        """Whether a step was begun on a stripe and not finished."""
        words = self.stripes[index].words
        used = int(words["in_use"])
        return bool(words["done"][used] or words["copied"][used])

    def between(self) -> bool:
        """Whether all stripes are at the same round, and no step is half done; ask while all are locked."""
        numbers = {int(stripe.words["round"]) for stripe in self.stripes}
        return len(numbers) <= 1 and not any(map(self._is_half_done, range(len(self.stripes))))

    def visit_between(
        self,
        visit: Callable[[], object],
        lock_all: Callable[[float], bool],
        free: Callable[[], None],
        patience_s: float,
    ) -> None:
        """Call ``visit`` with all stripes locked, between two rounds; after ``patience_s`` at any moment.

        Parameters
        ----------
        visit : callable
        lock_all : callable
            Locks all stripes until a deadline on `time.monotonic`; returns whether it did.
        free : callable
            Frees those that are locked.
        patience_s : float
        """
        deadline, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
        while True:
            try:
                between = lock_all(deadline) and self.between()
                if between or time.monotonic() > deadline:
                    if not between:
                        log.warning("no moment between two rounds within %g s: this copy mixes them", patience_s)
                    visit()
                    return
            finally:
                free()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def take_over(self, index: int, rule: OuterRule, local: Sequence[Array], number: int) -> tuple[int, int] | None:
        """Make the outer step of round ``number`` on a stripe unless it is made, and take the values over.

        Returns
        -------
        (piece, element) of the first center value that would not have been finite, or None. Such elements, with the
        rule's states, stay as they were.
        """
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
                if done <= words["done"][used]:  # by a worker that died in the midst of it
                    continue
                kernels = self._kernels[index][piece]
                if words["copied"][used] == done:  # and in the midst of this very block
                    kernels.put_back(block, used)
                else:
                    kernels.copy(block, used)
                    words["copied"][used] = done
                refused = kernels.step(rule, block, used, count, part)
                words["done"][used] = done
                if refused is not None and first is None:
                    first = (piece, refused)
        # In this order: whoever goes on after a death between two of them makes no step twice, and leaves none out.
        for name in _PER_TOTALS:
            words[name][used] = 0
        words["generation"] += 1
        words["round"] = number
        return first

    def note_read(self, index: int) -> None:
        """Record that a stripe was copied; see `begin`."""
        self._read[index] = int(self.stripes[index].words["generation"])

    def begin(self) -> None:
        """Record that this worker's parameters are now what was read, or written, last."""
        self._begun = list(self._read)

    def note_changed(self, index: int) -> None:
        """Record that this worker has changed a stripe otherwise, while no other took part."""
        words = self.stripes[index].words
        words["generation"] += 1
        self._begun[index] = int(words["generation"])

    def write(self, index: int, values: Sequence[Array]) -> None:
        """Put values into a stripe; progress made from others counts no more."""
        words, center, *_ = self.stripes[index]
        if not all(np.array_equal(c, value) for c, value in zip(center, values)):
            self.replace(index, values)
        self._read[index] = self._begun[index] = int(words["generation"])

    def replace(self, index: int, values: Sequence[Array]) -> None:
        """Put values into a stripe, also those that it holds; what was added to it for the next step is left out."""
        words, center, totals, *_ = self.stripes[index]
        words["generation"] += 1
        for total in totals[1 - int(words["in_use"])]:
            total[...] = 0
        self._use_other(index, 0, 0.0)
        for c, value in zip(center, values):
            np.copyto(c, value)
