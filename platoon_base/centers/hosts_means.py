"""Mean of all hosts' centers, taken while all workers wait, with rules that do not wait.

As in `round_totals`, each host's courier sends a copy of its center to the others. Once the hosts
agree on the complete copies, each replaces its center by their mean, in the order of the hosts: all
centers are bitwise equal. Averages are treated alike; moments stay those of each host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.overwrites import await_count
from platoon_base.centers.round_totals import RoundTotals
from platoon_base.dtypes import sum_dtype
from platoon_base.layout import Layout

__all__ = ["HostsMeans", "is_finite", "weighted_mean"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)


class HostsMeans:
    """The center of one host, for means over several hosts; see `AcrossHosts`."""

    workers_wait = False
    wanted = 0  # No worker waits for a round it did not take part in.

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
        # Set by the courier: whether no exchange is in flight, which would move one of two centers
        # later.
        self.is_quiet: Callable[[], bool] = lambda: True
        self._layout = Layout(specs if average is None else specs * 2)

    @property
    def made(self) -> int:
        """Latest round whose mean was written to this center."""
        return int(self._header["mean"])

    def wait(self, number: int, timeout_s: float) -> None:
        await_count(lambda: self.made, number, timeout_s, "the mean of the centers of all hosts")

    def new_totals(self) -> RoundTotals:
        return RoundTotals(self._layout, ())

    def are_gathered(self, number: int) -> bool:
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the center; False while an exchange of the courier is in flight."""
        if not self.is_quiet():
            return False
        self._copy(totals.arrays[: self._trained], totals.arrays[self._trained :])
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Set the center to the mean of finite copies, weighted by ``workers``; False if locked."""
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
        """Overwrite this center with another host's; False if a stripe stayed locked."""
        if not self._put(values, states):
            return False
        self._header["mean"] = max(number, self.made)
        return True


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several copies, exact for equal copies; half precision adds in float32."""
    total = sum(weights)
    means = []
    for arrays in zip(*copies):
        dtype = arrays[0].dtype
        wide = sum_dtype(dtype)
        first = arrays[0].astype(wide, copy=False)
        mean = first.copy()
        for array, weight in zip(arrays[1:], weights[1:]):
            # Add products, not differences: the difference of two large numbers may overflow.
            part = wide.type(weight / total)
            mean += array.astype(wide, copy=False) * part - first * part
        means.append(mean.astype(dtype, copy=False))
    return means


def is_finite(array: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        # One sum is faster than a test of each element.
        total = array.sum(dtype=sum_dtype(array.dtype))
        return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
