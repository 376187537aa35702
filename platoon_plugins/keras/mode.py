"""The protocol of the two modes of a fit: asynchronous and synchronous training."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from platoon_base.rules import Rule

__all__ = ["Mode"]


class Mode(Protocol):
    """How the workers of a fit train one model. ``rule`` is None for averaged gradients."""

    rule: Rule | None

    @property
    def stops(self) -> bool:
        """Whether the votes so far suffice to end the fit in mid-epoch."""
        ...

    def describe(self, model: Any) -> str:
        """Return a text of the settings that must be the same on all workers."""
        ...

    def moments(self, model: Any) -> list[Any]:
        """Return the state of the optimizers that is shared with the weights."""
        return []

    def start(self, model: Any, participants: list[int]) -> None:
        """Start; the model's values are equal on all workers, and shared if there is a rule."""
        ...

    def batches_done(self, count: int) -> None:
        """Record training batches; synchronize if it is due."""
        ...

    def vote(self) -> None: ...

    def epoch_ends(self) -> None:
        """Synchronize after the last batch of an epoch."""
        ...

    def set_participants(self, ranks: list[int]) -> None:
        """Record the participants."""

    def enter_center(self) -> None:
        """Give the model the center's weights, for evaluation and checkpoints."""

    def take_loss(self, loss: float) -> None:
        """Record the training loss of an epoch, over the data of all workers."""

    def leave_center(self) -> None:
        """Give the model the worker's own weights back."""

    def report(self) -> dict[str, float]:
        """Return numbers that are sent to all workers with the votes of an epoch."""
        return {}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Process the reports of all ranks, the same on all workers."""

    def center(self) -> contextlib.AbstractContextManager[None]:
        """Give the model the center's weights within ``with``, in mid-epoch."""
        return contextlib.nullcontext()

    def pause(self) -> None:
        """Stop synchronizing until `start`, with the center's weights in the model."""

    def finish(self) -> None:
        """End the fit, with the center's weights in the model."""
