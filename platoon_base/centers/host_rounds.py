"""Rounds of an outer-step rule at the center on the host, stripe by stripe, under its lock.

A worker writes its progress into its own memory, waits for the other workers, and copies the
stripes. The first worker at a stripe after the wait adds up the contributions in the order of the
ranks, and makes the outer step there. On several hosts, couriers first exchange these sums, and the
sum over all hosts takes their place (`across_hosts`). A worker contributes to a stripe only if the
generation is the one it copied: rounds do not mix. Deaths are harmless: one store makes a
contribution valid, the next generation ends it, and the step saves each block before it changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.host_kernels import STEP_BLOCK, RoundKernels, blocks
from platoon_base.centers.stripes import Stripe, copy_all, cut
from platoon_base.dtypes import Array, add_up, sum_dtype
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout
from platoon_base.rules.outer import OuterRule
from platoon_base.shm.schema import Growing, Part, Parts, Views
from platoon_base.timeouts import timeout

_NO_GENERATION = -1  # This worker's values are not a copy of the stripe.

# A contribution to a stripe: the number of workers in it, 1 + the generation that it belongs to, and
# the sum of their parts of a period.
_NOTE = np.dtype([("count", "u4"), ("generation", "u4"), ("part", "f8")], align=True)


def contributions_of(layout: Layout, stripes: int) -> Parts:
    """Return the memory of one worker's contributions; ``owner`` is 1 + its rank, 0 if unused."""
    return Parts(Part("owner", "u4"), Part("notes", _NOTE, (stripes,)), Part("progress", layout))


class Total(NamedTuple):
    """Contributions to a stripe: for each of its pieces, the arrays to add up in their order."""

    workers: int
    part: float  # The sum of their parts of a period.
    sources: Sequence[Sequence[Array]]

    def write(self, out: Sequence[Array]) -> None:
        """Write the sum to memory of the stripe's pieces."""
        with np.errstate(all="ignore"):  # The step leaves out what is not finite.
            for each, sources in zip(out, self.sources):
                add_up(sources, each)


class Contributions:
    """The contributions of one worker, or of all hosts, to each stripe."""

    def __init__(self, memory: Views, stripes: Sequence[Stripe]) -> None:
        self.owner, self._notes = memory.owner, memory.notes
        self._pieces = [cut(memory.progress, stripe.pieces) for stripe in stripes]

    def begin(self, stripe: Stripe) -> list[Array]:
        """Return the memory for a contribution to a stripe; call `end` when it is written."""
        self._notes["generation"][stripe.index] = 0
        return self._pieces[stripe.index]

    def end(self, stripe: Stripe, count: int, part: float) -> None:
        note = self._notes[stripe.index]
        note["count"], note["part"] = count, part
        note["generation"] = int(stripe.holder["generation"]) + 1  # A single store.

    def has(self, stripe: Stripe) -> bool:
        """Return whether there is a contribution to the present generation of a stripe."""
        return bool(self._notes["generation"][stripe.index] == int(stripe.holder["generation"]) + 1)

    @staticmethod
    def total(of: Sequence[Contributions], stripe: Stripe) -> Total:
        notes = [each._notes[stripe.index] for each in of]
        pieces = [[each._pieces[stripe.index][i] for each in of] for i in range(len(stripe.pieces))]
        return Total(sum(int(n["count"]) for n in notes), sum(float(n["part"]) for n in notes), pieces)


class Rounds:
    """One worker's view of the rounds; the caller holds the lock of each stripe it passes."""

    def __init__(self, memory: Views, layout: Layout, stripes: Sequence[Stripe], rank: int) -> None:
        self._stripes, self._rank = list(stripes), rank
        self._slots = Growing(memory, contributions_of(layout, len(stripes)))
        self._mapped: list[Contributions] = []
        self._own: Contributions | None = None
        # The sum over all hosts, which the courier writes.
        self._of_hosts = [Contributions(views, stripes) for views in memory.of_hosts]
        scratch = np.empty(max(sum_dtype(spec.dtype).itemsize for spec in layout.specs) * STEP_BLOCK, np.uint8)
        self._states = [[cut(state, stripe.pieces) for state in memory.states] for stripe in stripes]
        self._kernels = [
            [
                RoundKernels(center, tuple(state[i] for state in states), memory.undo[stripe.index], scratch)
                for i, center in enumerate(stripe.center)
            ]
            for stripe, states in zip(stripes, self._states)
        ]
        self._begun = [_NO_GENERATION] * len(stripes)  # Generations this worker copied.
        self._read = list(self._begun)

    def close(self) -> None:
        self._slots.close()

    def _workers(self) -> list[Contributions]:
        """Return the memory of all workers that have ever contributed, by rank."""
        new = range(len(self._mapped), len(self._slots))
        self._mapped += [Contributions(self._slots.views(index), self._stripes) for index in new]
        return sorted((each for each in self._mapped if each.owner), key=lambda each: int(each.owner))

    def _own_memory(self) -> Contributions:
        """Return this worker's memory: that of its rank, or unused, or new."""
        if self._own is None:
            with self._slots.locked(timeout("end")) as locked:
                if not locked:
                    raise CollectiveTimeoutError("another worker joins for long: is it stopped (SIGSTOP)? End it")
                self._workers()
                of_rank = [each for each in self._mapped if each.owner == self._rank + 1]
                found = of_rank or [each for each in self._mapped if not each.owner]
                if not found:
                    self._slots.add()
                    self._workers()
                self._own = (found or self._mapped[-1:])[0]
                self._own.owner[...] = self._rank + 1
        return self._own

    def contribute(self, stripe: Stripe, local: Sequence[Array], part: float) -> tuple[int, int] | None:
        """Contribute ``x - c`` to a stripe; return the first (piece, element) left out."""
        # Nothing is contributed if this worker copied another generation, if a dead worker's step
        # is unfinished, or if the round is already closed.
        words, index = stripe.holder, stripe.index
        all_have_met = max(int(words["met"]), int(words["gathered"])) > words["round"]
        if self._begun[index] != words["generation"] or _is_half_done(words) or all_have_met:
            return None
        self._begun[index] = _NO_GENERATION  # A second call must not count twice.
        own = self._own_memory()
        kernels = zip(self._kernels[index], local, own.begin(stripe))
        refused = [(piece, k.contribute(x, to)) for piece, (k, x, to) in enumerate(kernels)]
        own.end(stripe, 1, part)
        return next(((piece, element) for piece, element in refused if element is not None), None)

    def total_here(self, stripe: Stripe) -> Total:
        """Return the sum of the contributions of this host's workers to a stripe."""
        return Contributions.total([each for each in self._workers() if each.has(stripe)], stripe)

    def gather(self, stripe: Stripe, number: int, of: Total) -> None:
        """Set the sum of a round over all hosts, which takes the place of this host's."""
        (into,) = self._of_hosts
        of.write(into.begin(stripe))
        into.end(stripe, of.workers, of.part)
        stripe.holder["gathered"] = number

    def note_met(self, stripe: Stripe, number: int) -> None:
        """Record that all have contributed to round ``number``, whose step is made later."""
        stripe.holder["met"] = max(int(stripe.holder["met"]), number)

    def between(self) -> bool:
        """Return whether all stripes are at one round, without half a step; lock all first."""
        words = [stripe.holder for stripe in self._stripes]
        return len({int(each["round"]) for each in words}) <= 1 and not any(map(_is_half_done, words))

    def take_over(self, stripe: Stripe, rule: OuterRule, local: Sequence[Array], number: int) -> tuple[int, int] | None:
        """Make the outer step on a stripe if needed, and copy the values to ``local``."""
        first = self._step(stripe, rule, number) if stripe.holder["round"] < number else None
        copy_all(local, stripe.center)
        self._begun[stripe.index] = int(stripe.holder["generation"])
        return first

    def _step(self, stripe: Stripe, rule: OuterRule, number: int) -> tuple[int, int] | None:
        gathered = [each for each in self._of_hosts if each.has(stripe)]
        total = Contributions.total(gathered, stripe) if gathered else self.total_here(stripe)
        with np.errstate(all="ignore"):
            first = self._apply(stripe, rule, total) if total.workers else None
        _begin_generation(stripe.holder)
        stripe.holder["round"] = number
        return first

    def _apply(self, stripe: Stripe, rule: OuterRule, total: Total) -> tuple[int, int] | None:
        """Make the outer step by a total, except on blocks that a dead worker has finished."""
        words, first, done, part = stripe.holder, None, 0, total.part / total.workers
        for piece, kernels in enumerate(self._kernels[stripe.index]):
            for block in blocks(stripe.center[piece].size):
                done += block.stop - block.start
                if done <= words["done"]:
                    continue
                if words["copied"] == done:  # It died in this block.
                    kernels.put_back(block)
                else:
                    kernels.copy(block)
                    words["copied"] = done
                refused = kernels.step(rule, block, total.sources[piece], total.workers, part)
                words["done"] = done
                if refused is not None and first is None:
                    first = (piece, refused)
        return first

    def note_read(self, stripe: Stripe) -> None:
        """Record that a stripe was read or written; see `begin`."""
        self._read[stripe.index] = int(stripe.holder["generation"])

    def begin(self) -> None:
        """Record that this worker's parameters equal the stripes last read or written."""
        self._begun = list(self._read)

    def note_changed(self, stripe: Stripe) -> None:
        """Record that this worker has changed a stripe without a round, as a single worker does."""
        stripe.holder["generation"] += 1
        self._begun[stripe.index] = int(stripe.holder["generation"])

    def write(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Write values into a stripe; progress from earlier values no longer counts."""
        if not all(np.array_equal(c, value) for c, value in zip(stripe.center, values)):
            self.replace(stripe, values)
        self._read[stripe.index] = self._begun[stripe.index] = int(stripe.holder["generation"])

    def replace(self, stripe: Stripe, values: Sequence[Array], states: Sequence[Sequence[Array]] = ()) -> None:
        """Write values and states into a stripe, and drop the contributions to its next step."""
        _begin_generation(stripe.holder)
        for own, given in zip(self._states[stripe.index], states):
            copy_all(own, given)
        copy_all(stripe.center, values)


def _is_half_done(words: Any) -> bool:
    """Return whether the step on a stripe was begun and not finished."""
    return bool(words["done"] or words["copied"])


def _begin_generation(words: Any) -> None:
    """Drop all contributions to a stripe, and end a step that was begun."""
    # In this order, a death between two lines neither repeats nor skips a step.
    words["generation"] += 1
    words["done"] = words["copied"] = 0
