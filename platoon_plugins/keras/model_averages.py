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
    """Starts and ends fits and epochs for the `GradientAverage` of each optimizer of a model."""

    # All workers call the optimizers in the same order. A worker that has finished its epoch
    # repeats the calls of one batch, without gradients, until all workers have finished.

    def __init__(self, members: list[GradientAverage]) -> None:
        self.members = members
        self._calls: list[GradientAverage] = []
        self._pattern: list[GradientAverage] = members
        self._batches = 0

    def place(self, device: Any) -> None:
        for member in self.members:
            member.place(device)

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """Start a fit; with several optimizers, each shows its weights in its first step."""
        self._calls.clear()
        self._batches = 0
        if len(self.members) == 1:
            self.members[0].attach(policy, like)
            return
        for member in self.members:
            member.attach(policy, member.like, self._calls)

    def detach(self) -> None:
        for member in self.members:
            member.detach()

    def vote(self) -> None:
        for member in self.members:
            member.send(VOTE)

    @property
    def stops(self) -> bool:
        return any(member.stops for member in self.members)

    @property
    def on_device(self) -> bool:
        return any(member.on_device for member in self.members)

    def require_attached(self) -> None:
        for member in self.members:
            member.require_attached()

    def require_sound(self) -> None:
        for member in self.members:
            member.require_sound()

    def count(self, steps: int) -> None:
        self._batches += steps
        for member in self.members:
            member.count(steps)

    def program_started(self) -> None:
        for member in self.members:
            member.program_started()

    def join(self) -> list[int]:
        """Call without gradients until all workers end the epoch; return each rank's steps."""
        own = sum(member.steps for member in self.members)
        pattern = self._calls_of_a_batch()
        flags = [member.send(DONE) for member in self.members]
        for member in itertools.cycle(pattern):
            if member.is_last_call():
                break
            if len(self.members) > 1 and own % max(self._batches, 1):
                raise ConfigurationError(
                    f"got {own} steps of the optimizers in {self._batches} batches, and another "
                    "number of batches on another worker, so the next step is unknown: use the "
                    "same number of batches on all workers, for example with shard(..., "
                    'uneven="wrap") and a batch size that divides the number of rows'
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
        """Return the members in the order in which a batch of the latest epoch called them."""
        if self._calls:
            each = len(self._calls) // max(self._batches, 1)
            self._pattern = self._calls[: max(each, 1)]
        return self._pattern
