"""The averages of gradients of one model, which may have several optimizers, as a GAN has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.gradients import DONE, VOTE, GradientAverage

__all__ = ["ModelAverages"]

Array = np.ndarray[Any, Any]


class ModelAverages:
    """Starts and ends fits and epochs for the `GradientAverage` of each optimizer of a model.

    All workers call the optimizers in the same order. A worker that has ended its epoch continues the calls of a batch
    without gradients, until all workers have ended theirs.

    Parameters
    ----------
    members : list of GradientAverage
        One for each optimizer.

    Attributes
    ----------
    members
        See the parameter.
    """

    def __init__(self, members: list[GradientAverage]) -> None:
        self.members = members
        self._calls: list[GradientAverage] = []
        self._pattern: list[GradientAverage] = members
        self._batches = 0

    def place(self, device: Any) -> None:
        """Prepare for gradients on a device, given as the back end's object for it; None for the host."""
        for member in self.members:
            member.place(device)

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """Start a fit; with several optimizers, the first step shows which weights each of them trains."""
        self._calls.clear()
        self._batches = 0
        if len(self.members) == 1:
            self.members[0].attach(policy, like)
            return
        for member in self.members:
            member.attach(policy, member.like, self._calls)

    def detach(self) -> None:
        """End the fit; the next one has to attach again."""
        for member in self.members:
            member.detach()

    def vote(self) -> None:
        """Vote for the end of the fit; the vote is sent to all workers with the next call."""
        for member in self.members:
            member.send(VOTE)

    @property
    def stops(self) -> bool:
        """Whether the votes received with the latest call suffice to end the fit; the same on every worker."""
        return any(member.stops for member in self.members)

    @property
    def lags(self) -> bool:
        """Whether the votes received are those of an earlier batch."""
        return any(member.lags for member in self.members)

    def require_attached(self) -> None:
        """Raise `ConfigurationError` if no fit in progress has prepared the model."""
        for member in self.members:
            member.require_attached()

    def require_sound(self) -> None:
        """Raise the error of an earlier call that could not be raised in that call."""
        for member in self.members:
            member.require_sound()

    def count(self, steps: int) -> None:
        """Record batches."""
        self._batches += steps
        for member in self.members:
            member.count(steps)

    def program_started(self) -> None:
        """Record that the compiled program of a batch has been started."""
        for member in self.members:
            member.program_started()

    def join(self) -> list[int]:
        """Make calls without gradients until every worker has ended its epoch.

        Returns
        -------
        list of int
            The number of steps of each rank in the epoch; if they differ, weights and optimizers differ too.
        """
        own = sum(member.steps for member in self.members)
        pattern = self._calls_of_a_batch()
        flags = [member.send(DONE) for member in self.members]
        for member in itertools.cycle(pattern):
            if member.is_last_call():
                break
            if len(self.members) > 1 and own % max(self._batches, 1):
                raise ConfigurationError(
                    f"got {own} steps of the optimizers in {self._batches} batches, and another number of batches on "
                    "another worker: which step comes next is not known; give all workers as many batches, such as by "
                    'shard(..., uneven="wrap") and a batch size that divides the number of rows'
                )
        for member, flag in zip(self.members, flags):
            member.send(flag)
            member.settle()
        steps: list[int] = self.members[0].worker.all_gather(np.array([own]))[:, 0].tolist()
        for member in self.members:
            member.steps = 0
        self._calls.clear()
        self._batches = 0
        return steps

    def _calls_of_a_batch(self) -> list[GradientAverage]:
        """Return the members in the order of their calls for a batch, by the previous epoch if this one had none."""
        if self._calls:
            each = len(self._calls) // max(self._batches, 1)
            self._pattern = self._calls[: max(each, 1)]
        return self._pattern
