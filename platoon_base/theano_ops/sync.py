"""The Op with which a worker synchronizes inside the compiled function."""

from __future__ import annotations

from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops.base import JobBound, JobOp, next_turn
from platoon_base.worker.fit import Fit

__all__ = ["Sync", "Synchronizer"]


class Synchronizer(JobBound):
    """Counts the updates of one compiled training loop as steps of its fit, which synchronizes."""

    def __init__(self, fit: Fit) -> None:
        self.worker = fit.worker
        self.turn = next_turn()
        self._fit, self._timeout_s = fit, fit.timeout_s
        self._sharing = self.worker.advanced.sharing

    def step(self, arrays: list[Any]) -> None:
        """Count one update, and synchronize ``arrays`` in place if that is due."""
        if self.worker.advanced.sharing != self._sharing:
            raise ConfigurationError(
                "this function synchronizes parameters that were released: compile one without "
                "synchronization, or wrap the updates again and compile"
            )
        self.worker.progress(steps=1)
        self._fit.timeout_s = self._timeout_s
        self._fit.step(arrays=arrays)


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
