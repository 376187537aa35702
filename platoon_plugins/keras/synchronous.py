"""A fit in which every step is taken together, by averaged gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.base import Backend
from platoon_plugins.keras.common_start import copy_state
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["Synchronous"]


class Synchronous:
    """See `platoon_plugins.keras.training.Mode`.

    Parameters
    ----------
    worker : Worker
    backend : Backend
    average : GradientAverage
        Of the model's optimizer.
    policy : {"any", "all", "leader"}
        Whose votes end the fit.
    """

    purpose = "sync=None with DistributedOptimizer"

    def __init__(self, worker: Worker, backend: Backend, average: GradientAverage, policy: str) -> None:
        self._worker, self._backend, self._average, self._policy = worker, backend, average, policy
        self._model: Any = None
        self._batches = 0

    def start(self, model: Any, members: list[int]) -> None:
        """Prepare the averages."""
        self._model = model
        like = [weight.get_value(borrow=True) for weight in self._backend.weights(model)]
        self._average.attach(self._policy, like)

    def batches_done(self, count: int) -> None:
        """Count them, where the compiled function does not."""
        self._average.require_sound()
        self._average.count(count)
        self._batches += count

    @property
    def stops(self) -> bool:
        """Whether the votes that came with the latest gradients suffice."""
        return self._average.stops

    def vote(self) -> None:
        """Vote for the end of the fit."""
        self._average.vote()

    def epoch_ends(self) -> None:
        """Wait until all have come to the end of their batches; those who had fewer take the others' weights over."""
        self._average.require_sound()
        if self._batches and not self._average.steps:
            raise ConfigurationError(
                "got a train_step that does not call the optimizer's apply or stateless_apply: the gradients of this "
                "epoch were not averaged; let it call self.optimizer.apply(gradients, trainable_variables)"
            )
        self._batches = 0
        if not self._average.join():
            copy_state(self._model, self._worker, self._backend, self._average.most_steps)
        self._average.begin_epoch()

    def members_are(self, ranks: list[int]) -> None:
        """Take note of who takes part: everybody, or it ends with an error."""

    def enter_center(self) -> None:
        """Do nothing: all models are the same."""

    leave_center = enter_center

    @contextlib.contextmanager
    def center(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def finish(self) -> None:
        """Do nothing: all models are the same."""
