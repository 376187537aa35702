"""The mean of all hosts' centers, taken while all workers wait, in training with rules that do not wait.

It is a round like those of rules that wait, see `platoon_base.centers.round_totals`: each host's courier copies the
center and sends the copy to the others. Once it is known whose copies all hosts have, each host replaces its center by
the mean of these, in the order of the hosts. So all centers are bitwise equal. With a rule that averages its center
they do the same with its averages. Moments of optimizers stay those of each host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.fragments import Fragments
from platoon_base.centers.overwrites import await_count
from platoon_base.centers.round_totals import RoundTotals
from platoon_base.layout import Layout

__all__ = ["HostsMeans", "is_finite", "weighted_mean"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)


class HostsMeans:
    """The center of one host, for means over several hosts; see `AcrossHosts`.

    Parameters
    ----------
    layout : Layout
    header : structured scalar
        With ``mean``, the number of the latest mean that was written to this center, in shared memory.
    copy : callable
        ``copy(values, averages)`` copies the center's parameters, and their averages.
    move_to : callable
        ``move_to(values, averages)`` moves the center and sets its average; it returns False if a stripe stayed
        locked.
    put : callable
        ``put(values, states)`` overwrites the center and the rule's states; it returns False likewise.
    average : int or None
        Which of the rule's states is the average of the center.

    Attributes
    ----------
    is_quiet : callable
        Returns whether no exchange of the courier is in flight, which would move only one of two centers afterwards.
    """

    workers_wait = False
    wanted = 0  # no worker waits for a round that it had no part in

    def __init__(
        self,
        layout: Layout,
        header: Any,
        copy: Callable[[Sequence[Array], Sequence[Array]], None],
        move_to: Callable[[Sequence[Array], Sequence[Array]], bool],
        put: Callable[[Sequence[Array], Sequence[Sequence[Array]]], bool],
        average: int | None,
    ) -> None:
        self._header = header
        self._copy, self._move_to, self._put = copy, move_to, put
        specs = layout.trained.specs
        self._trained = len(specs)
        self.is_quiet: Callable[[], bool] = lambda: True
        self.fragments = Fragments(Layout(specs if average is None else specs * 2), ())

    @property
    def made(self) -> int:
        """The latest mean that was written to this center."""
        return int(self._header["mean"])

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until a mean was written to this center; raises `CollectiveTimeoutError`."""
        await_count(lambda: self.made, number, timeout_s, "the mean of the centers of all hosts")

    def new_totals(self) -> RoundTotals:
        """Allocate memory for a copy."""
        return RoundTotals(self.fragments)

    def are_gathered(self, number: int) -> bool:
        """Return whether a mean was written to this center."""
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the center, once all exchanges have ended; the base is the same on all hosts."""
        if not self.is_quiet():
            return False
        self._copy(totals.arrays[: self._trained], totals.arrays[self._trained :])
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Replace the center by the mean of several hosts' copies, in order; False if a stripe stayed locked.

        A copy with NaN or infinity is left out, on all hosts.

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
            if not self._move_to(mean[: self._trained], mean[self._trained :]):
                return False
        self._header["mean"] = number
        return True

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's, and record the number of its latest mean; see `gather`."""
        if not self._put(values, states):
            return False
        self._header["mean"] = max(number, self.made)
        return True


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several hosts' copies, array by array; the mean of equal copies is bitwise equal to them.

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
            # Add products, not differences: the difference of two large numbers may overflow.
            part = wide.type(weight / total)
            mean += array.astype(wide, copy=False) * part - first * part
        means.append(mean.astype(dtype, copy=False))
    return means


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype="f4" if array.dtype.itemsize < 4 else array.dtype)  # faster than many tests
        return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
