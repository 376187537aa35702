"""The mean of all hosts' centers, where workers that do not wait for each other have met, and stand still.

It is a round like those of rules that wait, see `platoon_base.centers.round_totals`: the courier of each host copies
the center, and sends the copy to the others; once it is known whose copies all hosts have, each puts the mean of those,
in the order of the hosts, in place of its center. So all have the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.overwrites import await_count
from platoon_base.centers.round_totals import RoundTotals
from platoon_base.layout import Layout

__all__ = ["HostsMeans", "is_finite", "weighted_mean"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)


class HostsMeans:
    """The center of one host, as means of several hosts change it; in place of a `HostsRounds`.

    Parameters
    ----------
    layout : Layout
    header : structured scalar
        With ``mean``, the number of the latest mean that this center has come to, in shared memory.
    snapshot : callable
        Copies the center.
    move_to : callable
        ``move_to(values)`` moves the center; returns False if a part stayed taken.
    put : callable
        ``put(values, states)`` puts others in place of the center and the rule's states, likewise.
    """

    workers_wait = False

    def __init__(
        self,
        layout: Layout,
        header: Any,
        snapshot: Callable[[], tuple[list[Array], list[list[Array]]]],
        move_to: Callable[[Sequence[Array]], bool],
        put: Callable[[Sequence[Array], Sequence[Sequence[Array]]], bool],
    ) -> None:
        self._layout, self._header = layout, header
        self._snapshot, self._move_to, self._put = snapshot, move_to, put

    @property
    def made(self) -> int:
        """The latest mean that this center has come to."""
        return int(self._header["mean"])

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until this center has come to a mean; raises `CollectiveTimeoutError`."""
        await_count(lambda: self.made, number, timeout_s, "the centers of all hosts to come to their mean")

    def new_totals(self) -> RoundTotals:
        """Make room for a copy."""
        return RoundTotals(self._layout, 0)

    def are_gathered(self, number: int) -> bool:
        """Return whether this center has come to a mean."""
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the center; all begin from the same base."""
        values, _ = self._snapshot()
        for target, value in zip(totals.arrays, values):
            np.copyto(target, value)
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Put the mean of several hosts' copies, in their order, in place of the center; False if a part stayed taken.

        A copy that holds NaN or infinity is left out, on all hosts.

        Parameters
        ----------
        totals : sequence of RoundTotals
        number : int
        workers : sequence of int
            Of each host, by which its copy is weighted.
        """
        finite = [i for i, each in enumerate(totals) if all(map(is_finite, each.arrays))]
        if len(finite) < len(totals):
            log.warning(
                "the centers of %d of %d hosts hold NaN or infinity, and are left out of the mean: has training "
                "diverged? A lower learning rate helps",
                len(totals) - len(finite),
                len(totals),
            )
        if finite:
            mean = weighted_mean([totals[i].arrays for i in finite], [float(workers[i]) for i in finite])
            if not self._move_to(mean):
                return False
        self._header["mean"] = number
        return True

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Put another host's center in place of this one, with the mean that it has come to; see `gather`."""
        if not self._put(values, states):
            return False
        self._header["mean"] = max(number, self.made)
        return True


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several hosts' copies, array by array; that of equal copies is equal to them, bit by bit.

    Half-precision numbers are added in float32.
    """
    total = sum(weights)
    means = []
    for arrays in zip(*copies):
        dtype = arrays[0].dtype
        wide = np.dtype("f4") if dtype.itemsize < 4 else dtype
        first = arrays[0].astype(wide, copy=False)
        mean = first.copy()
        for array, weight in zip(arrays[1:], weights[1:]):
            # Products, not the mean of differences: the difference of two large numbers may overflow.
            part = wide.type(weight / total)
            mean += array.astype(wide, copy=False) * part - first * part
        means.append(mean.astype(dtype, copy=False))
    return means


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype="f4" if array.dtype.itemsize < 4 else array.dtype)  # faster than to ask each
        return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
