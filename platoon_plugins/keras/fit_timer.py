"""The phases of a fit for the launcher's report: loading, computation and validation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.worker import COMPUTE, LOADING, VALIDATION

__all__ = ["FitTimer"]


class FitTimer:
    """Enters the phase that follows each hook of a fit.

    Keras 2 and torch get a batch between two steps. JAX gets it within the step, from an iterator that is timed here.
    With TensorFlow the compiled step gets it, so loading is a part of computation there.

    Parameters
    ----------
    worker : Worker
    model : keras.Model or None
        None before the first fit.
    """

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
        """Watch the steps of the model; ``at_batches`` if `loads` is called at the end of each batch."""
        self.computes()  # a fit that raised may have ended in another phase, and steps that it has not counted
        self._clock.ahead = 0
        step = getattr(self._model, "train_function", None)
        if step is None or self._backend not in ("torch", "jax") or (self._between and at_batches):
            return
        step = getattr(step, "untimed", step)  # a fit that raised has left its own
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
        """Wait for the next batch from here on."""
        if self._between:
            self._clock.enter(LOADING)

    def batch_begins(self) -> None:
        """Compute from here on: the batch is there, or is waited for within the step."""
        if self._between:
            self._clock.enter(COMPUTE)

    def steps(self, number: int) -> None:
        """Record steps that are counted later."""
        self._clock.step_ahead(number)

    def computes(self) -> None:
        """Compute from here on."""
        self._clock.enter(COMPUTE)

    def validates(self) -> None:
        """Validate from here on."""
        self._clock.enter(VALIDATION)

    def end(self) -> None:
        """Leave the model as it was."""
        self.computes()
        if self._timed is not None and self._model.train_function is self._timed:
            self._model.train_function = self._step
        self._step = self._timed = None
