"""The Op with which a worker synchronizes inside the compiled function."""

from __future__ import annotations

from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import EveryN
from platoon_base.theano_ops.base import JobBound, JobOp, next_turn
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker

__all__ = ["Sync", "Synchronizer"]


class Synchronizer(JobBound):
    """Counts the updates of one compiled training loop, and synchronizes on every N-th."""

    def __init__(
        self, worker: Worker, period: EveryN, timeout_s: float = DEFAULT_TIMEOUT_S, overlap: float = 0.0
    ) -> None:
        self.worker = worker
        self.period = period
        self.timeout_s = timeout_s
        self.turn = next_turn()
        self._advanced = worker.advanced
        self._sharing = self._advanced.sharing
        # The part of the period after which an overlapping round is completed.
        self._overlap = overlap

    def step(self, arrays: list[Any]) -> None:
        """Count one update, and synchronize ``arrays`` in place if it is the N-th."""
        if self._advanced.sharing != self._sharing:
            raise ConfigurationError(
                "this function synchronizes parameters that were released: compile one without "
                "synchronization, or wrap the updates again and compile"
            )
        self.worker.progress(steps=1)
        if self.period.due():
            self._advanced.sync_arrays(arrays, timeout_s=self.timeout_s)
        elif self._overlap and self._advanced.round_under_way and self.period.is_past(self._overlap):
            self._advanced.complete_round(arrays, timeout_s=self.timeout_s)


class Sync(JobOp):
    """Synchronize updated parameter values with the center on every N-th call."""

    __props__: tuple[str, ...] = ("synchronizer", "inplace", "ordered")

    def __init__(self, synchronizer: Synchronizer, inplace: tuple[int, ...] = (), ordered: bool = False) -> None:
        self.synchronizer = synchronizer
        self.turn = synchronizer.turn
        self.ordered = ordered
        self._set_inplace(inplace)

    def job_key(self) -> Any:
        """Return the worker: its synchronizations and its reductions keep one order."""
        return self.synchronizer.worker

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        arrays = [x if mine else x.copy(order="C") for x, mine in zip(values, own)]
        self.synchronizer.step(arrays)
        return arrays

    def __str__(self) -> str:
        return f"{type(self).__name__}{{inplace={self.inplace}}}"
