"""The averages of gradients of a model with several optimizers, such as a GAN."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["SeveralAverages"]

Array = np.ndarray[Any, Any]


class SeveralAverages:
    """Does for several optimizers what `GradientAverage` does for one; each optimizer keeps an average of its own.

    All workers call the optimizers in the same order. A worker that has come to the end of its epoch goes on with the
    calls that belong to a batch, without gradients, until all have come there.

    Parameters
    ----------
    members : list of GradientAverage
        One for each optimizer.

    Attributes
    ----------
    members
        As above.
    """

    def __init__(self, members: list[GradientAverage]) -> None:
        self.members = members
        self._calls: list[GradientAverage] = []
        self._pattern: list[GradientAverage] = members
        self._batches = 0

    def place(self, device: Any) -> None:
        """See `GradientAverage.place`."""
        for member in self.members:
            member.place(device)

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """See `GradientAverage.attach`; which weights are whose is seen in the first step."""
        self._calls, self._batches = [], 0
        for member in self.members:
            member.attach(policy, member.expected)
            member.calls = self._calls

    def detach(self) -> None:
        """See `GradientAverage.detach`."""
        for member in self.members:
            member.detach()
            member.calls = None

    def vote(self) -> None:
        """See `GradientAverage.vote`."""
        for member in self.members:
            member.vote()

    @property
    def stops(self) -> bool:
        """See `GradientAverage.stops`."""
        return any(member.stops for member in self.members)

    @property
    def lags(self) -> bool:
        """See `GradientAverage.lags`."""
        return any(member.lags for member in self.members)

    @property
    def sums(self) -> bool:
        """See `GradientAverage`."""
        return self.members[0].sums

    @sums.setter
    def sums(self, sums: bool) -> None:
        for member in self.members:
            member.sums = sums

    @property
    def weight(self) -> Any:
        """See `GradientAverage`; a loss may be that of any of the optimizers, or of all."""
        return self.members[0].weight

    @weight.setter
    def weight(self, weight: Any) -> None:
        for member in self.members:
            member.weight = weight

    def require_attached(self) -> None:
        """See `GradientAverage.require_attached`."""
        for member in self.members:
            member.require_attached()

    def require_sound(self) -> None:
        """See `GradientAverage.require_sound`."""
        for member in self.members:
            member.require_sound()

    def count(self, steps: int) -> None:
        """Take note of batches."""
        self._batches += steps
        for member in self.members:
            member.count(steps)

    def program_started(self) -> None:
        """See `GradientAverage.program_started`."""
        for member in self.members:
            member.program_started()

    def join(self) -> list[int]:
        """See `GradientAverage.join`."""
        pattern = self._calls_of_a_batch()
        own = len(self._calls)
        flags = [member.send_done() for member in self.members]
        for member in itertools.cycle(pattern):
            if member.is_last_call():
                break
            if own % max(self._batches, 1):
                raise ConfigurationError(
                    f"got {own} steps of the optimizers in {self._batches} batches, and another number of batches on "
                    "another worker: which step comes next is not known; give all workers as many batches, such as by "
                    'shard(..., uneven="wrap") and a batch size that divides the number of rows'
                )
        for member, flag in zip(self.members, flags):
            member.send_again(flag)
            member.settle()
        steps: list[int] = self.members[0].worker.all_gather(np.array([own]))[:, 0].tolist()
        for member in self.members:
            member.steps = 0
        self._calls.clear()
        self._batches = 0
        return steps

    def _calls_of_a_batch(self) -> list[GradientAverage]:
        """Return the members in the order of the calls for a batch, that of the last epoch where this had none."""
        if self._calls:
            each = len(self._calls) // max(self._batches, 1)
            self._pattern = self._calls[: max(each, 1)]
        return self._pattern
