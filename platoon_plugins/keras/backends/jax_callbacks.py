"""Averages of JAX's gradients by JAX's own callbacks, which copy them to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from platoon_plugins.keras.backends.compiled_gradients import CompiledAverage
from platoon_plugins.keras.gradients import Batch

__all__ = ["CallbackAverage"]

Array = np.ndarray[Any, Any]


class CallbackAverage(CompiledAverage):
    """Averages gradients by ordered callbacks, whose order is the same on all workers."""

    def average_in_program(self, batch: Batch) -> Sequence[Any]:
        """Return the averages of a batch; JAX has a gradient for every weight."""
        shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in batch.gradients]
        call, weight = (self._sum, 1.0) if batch.weight is None else (self._mean, batch.weight)
        averages: Sequence[Any] = io_callback(call, shapes, list(batch.gradients), weight, ordered=True)
        return averages

    # Bound methods compare equal: JAX compiles a callback once for each function.

    def _mean(self, gradients: Sequence[Any], weight: Any) -> list[Array]:
        return self._filled(gradients, weight)

    def _sum(self, gradients: Sequence[Any], _: Any) -> list[Array]:
        return self._filled(gradients, None)

    def _filled(self, gradients: Sequence[Any], weight: Any) -> list[Array]:
        ins = [np.asarray(gradient, order="C") for gradient in gradients]
        outs = [np.empty_like(array) for array in ins]
        self.fill(Batch(ins, weight, [True] * len(ins)), outs)
        return outs
