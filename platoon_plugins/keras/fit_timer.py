"""The phases of a fit in the launcher's report: loading, computation and validation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.worker import COMPUTE, LOADING, VALIDATION

__all__ = ["FitTimer"]


class FitTimer:
    """Enters the phase that follows each hook of a fit."""

    # Keras 2 and torch load a batch between two steps, JAX within the step from an iterator that is
    # timed here. On TensorFlow loading counts as computation.

    def __init__(self, worker: Worker, model: Any) -> None:
        self._worker, self._model = worker, model
        self._backend = keras.backend.backend()
        self._between = self._backend in ("theano", "torch")
        self._step: Callable[..., Any] | None = None
        self._timed: Callable[..., Any] | None = None

    @property
    def _clock(self) -> Any:
        return self._worker.advanced.clock

    def begin(self, at_batches: bool) -> None:
        """Watch the model's steps; ``at_batches`` if `loads` is called after each batch."""
        # A fit that raised may have ended in another phase, with steps that it did not count.
        self.computes()
        self._clock.ahead = 0
        step = getattr(self._model, "train_function", None)
        if step is None or self._backend not in ("torch", "jax") or (self._between and at_batches):
            return
        # A fit that raised has left its own wrapper.
        step = getattr(step, "untimed", step)
        clock, loads = self._clock, self.loads

        @functools.wraps(step)
        def timed(*args: Any) -> Any:
            if self._between:
                results = step(*args)
                loads()
                return results
            *first, batches = args
            return step(*first, clock.loading(batches) if hasattr(batches, "__next__") else batches)

        timed.untimed = step  # type: ignore[attr-defined]
        self._step, self._timed = step, timed
        self._model.train_function = timed

    def loads(self) -> None:
        if self._between:
            self._clock.enter(LOADING)

    def batch_begins(self) -> None:
        if self._between:
            self._clock.enter(COMPUTE)

    def steps(self, number: int) -> None:
        self._clock.step_ahead(number)

    def computes(self) -> None:
        self._clock.enter(COMPUTE)

    def validates(self) -> None:
        self._clock.enter(VALIDATION)

    def end(self) -> None:
        self.computes()
        if self._timed is not None and self._model.train_function is self._timed:
            self._model.train_function = self._step
        self._step = self._timed = None
