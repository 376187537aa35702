"""The protocol of the two ways to keep the workers of a fit together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from platoon_base.rules import Rule

__all__ = ["Mode"]


class Mode(Protocol):
    """How the workers of a fit are kept together; derived classes leave out the hooks at which they do nothing.

    Attributes
    ----------
    rule : Rule or None
        By which the weights are shared; None if they are not.
    """

    rule: Rule | None

    @property
    def stops(self) -> bool:
        """Whether the votes known so far, in the middle of an epoch, suffice to end the fit."""
        ...

    def describe(self, model: Any) -> str:
        """Return what must be the same on all workers."""
        ...

    def moments(self, model: Any) -> list[Any]:
        """Return the state of the optimizers that is shared with the weights."""
        return []

    def start(self, model: Any, participants: list[int]) -> None:
        """Begin; the model's values are the same on all workers, and are shared if there is a rule."""
        ...

    def batches_done(self, count: int) -> None:
        """Record training batches; synchronize, if it is time."""
        ...

    def vote(self) -> None:
        """Vote for the end of the fit."""
        ...

    def epoch_ends(self) -> None:
        """Finish what the batches of an epoch have begun."""
        ...

    def set_participants(self, ranks: list[int]) -> None:
        """Record who takes part."""

    def enter_center(self) -> None:
        """Put the common weights into the model, for evaluation and checkpoints."""

    def take_loss(self, loss: float) -> None:
        """Record the loss of training in an epoch, over the data of all workers."""

    def leave_center(self) -> None:
        """Take the worker's own weights back."""

    def report(self) -> dict[str, float]:
        """Return numbers that all workers are to see with the votes of an epoch's end."""
        return {}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Take in what each rank has reported, the same on all workers."""

    def center(self) -> contextlib.AbstractContextManager[None]:
        """Within the ``with`` block, in the middle of an epoch, the model has the common weights."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Leave the common weights in the model."""
