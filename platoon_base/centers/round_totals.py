"""Exchange of a round's totals between the hosts of a job.

After all workers have contributed, each host's courier sends its totals to the others. Once the
hosts agree on the complete totals, each adds these in the order of the hosts and replaces its own:
the sums are bitwise equal, and all workers make the same outer step. A host whose center is at
another round, after a late join or a return, first receives the center of the others, and its
contribution is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_rounds import Rounds, StripeArrays, use_other
from platoon_base.centers.stripes import Stripe, copy_all, cut, wait_until
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import ALIGNMENT, Layout, Piece
from platoon_base.timeouts import timeout

__all__ = ["HostsRounds", "RoundTotals", "are_gathered", "gather", "read_own"]

Array = np.ndarray[Any, Any]

_NUMBER, _BASE, _FIRST = 0, 1, 2  # Indices of words: the round, its base, the first count.


class RoundTotals:
    """One host's totals of one round, in a flat buffer that can be sent."""

    def __init__(self, layout: Layout, stripes: Sequence[tuple[Piece, ...]]) -> None:
        self.layout, self._stripes, count = layout, stripes, len(stripes)
        words = -(-(_FIRST + 2 * count) * 8 // ALIGNMENT) * ALIGNMENT // 8
        whole = np.zeros(words + layout.nbytes // 8, np.float64)
        self.buffer = memoryview(whole.view(np.uint8))  # type: ignore[arg-type]
        self.head = whole[:words]
        self.counts = self.head[_FIRST:][:count]
        self.parts = self.head[_FIRST + count :][:count]
        # Sum of ``x - c`` over the workers.
        self.arrays = layout.views(self.buffer, self.head.nbytes)

    @property
    def number(self) -> int:
        """Number of the round; 0 before the first."""
        return int(self.head[_NUMBER])

    @number.setter
    def number(self, number: int) -> None:
        self.head[_NUMBER] = number

    @property
    def base(self) -> int:
        """Latest round of the center that the contributions started from."""
        return int(self.head[_BASE])

    @base.setter
    def base(self, base: int) -> None:
        self.head[_BASE] = base

    def without_contribution(self) -> Iterator[tuple[Piece, ...]]:
        """Yield the pieces of each stripe without a contribution."""
        return (pieces for pieces, count in zip(self._stripes, self.counts) if not count)


class HostsRounds:
    """The center of one host, for rounds over several hosts; see `AcrossHosts`."""

    workers_wait = True

    def __init__(
        self,
        layout: Layout,
        stripes: Sequence[Stripe],
        rounds: Rounds,
        holders: Array,
        visit: Callable[[Callable[[Stripe], None], float], list[Stripe]],
    ) -> None:
        self._layout, self._stripes = layout, stripes
        self._rounds, self._holders, self._visit = rounds, holders, visit
        self._each = np.arange(len(stripes))

    @property
    def made(self) -> int:
        """Latest round whose step was made on all stripes."""
        return int(self._holders["round"].min()) if len(self._holders) else 0

    @property
    def wanted(self) -> int:
        """Latest round whose center a worker waits for; 0 if there is none."""
        return int(self._holders["wanted"][0]) if len(self._holders) else 0

    def want(self, number: int) -> None:
        """Make the courier request the center of a round from other hosts."""
        self._holders["wanted"][:1] = max(number, self.wanted)

    def new_totals(self) -> RoundTotals:
        return RoundTotals(self._layout, [stripe.pieces for stripe in self._stripes])

    def wait(self, number: int, timeout_s: float) -> None:
        if not wait_until(lambda: self.are_gathered(number), timeout_s):
            raise CollectiveTimeoutError(
                f"waited {timeout_s:g} s for the contributions of other hosts to round {number}: is the network slow "
                "or cut? Look into the logs of the launchers, or give a longer timeout_s"
            )

    def are_gathered(self, number: int) -> bool:
        holders = self._holders
        latest = holders["gathered"][self._each, holders["in_use"]]
        return bool(((holders["round"] >= number) | (latest == number)).all())

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy this host's own totals of a round; False if a stripe stayed locked: retry."""
        totals.number, totals.base = number, min(self.made, number - 1)
        totals.counts[:] = totals.parts[:] = 0

        def copy(stripe: Stripe) -> None:
            read_own(self._rounds.stripes[stripe.index], stripe, totals, number)

        if self._visit(copy, timeout("stripe")):
            totals.number = 0
            return False
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Replace this host's totals by the sum of several hosts' totals, in order; see `read`."""

        def put(stripe: Stripe) -> None:
            gather(self._rounds.stripes[stripe.index], stripe, totals, number)

        return not self._visit(put, timeout("stripe"))

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's, and set its round; see `read`."""
        number = max(number, self.made)

        def put(stripe: Stripe) -> None:
            arrays, new = self._rounds.stripes[stripe.index], cut(values, stripe.pieces)
            for given, own in zip(states, zip(*arrays.states)):
                copy_all(own, cut(given, stripe.pieces))
            self._rounds.replace(stripe.index, new)
            stripe.holder["round"] = number

        return not self._visit(put, timeout("stripe"))


def read_own(arrays: StripeArrays, stripe: Stripe, totals: RoundTotals, number: int) -> None:
    """Copy this host's own totals of a locked stripe, even if the sum has replaced them."""
    words, index = arrays.words, stripe.index
    used = int(words["in_use"])
    if are_gathered(words, number):
        used = 1 - used
    totals.counts[index], totals.parts[index] = words["count"][used], words["parts"][used]
    targets = cut(totals.arrays, stripe.pieces)
    if totals.counts[index]:
        copy_all(targets, arrays.totals[used])
    else:  # Without a contribution, the totals are undefined.
        for target in targets:
            target[...] = 0


def are_gathered(words: Any, number: int) -> bool:
    """Return whether a stripe holds the sum over all hosts for a round, or its step was made."""
    return bool(words["round"] >= number or words["gathered"][words["in_use"]] == number)


def gather(arrays: StripeArrays, stripe: Stripe, totals: Sequence[RoundTotals], number: int) -> None:
    """Replace a locked stripe's totals by the sum of several hosts' totals."""
    words, index = arrays.words, stripe.index
    if are_gathered(words, number):
        return
    target = arrays.totals[1 - int(words["in_use"])]
    own = [cut(each.arrays, stripe.pieces) for each in totals]
    for piece, into in enumerate(target):
        into[...] = own[0][piece] if own else 0
        # The step leaves out elements that are not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            for other in own[1:]:
                into += other[piece]
    count = sum(int(each.counts[index]) for each in totals)
    use_other(words, count, sum(float(each.parts[index]) for each in totals), number)
