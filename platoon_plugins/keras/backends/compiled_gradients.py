"""Averages of gradients on the host, by calls from a compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from platoon_base.dtypes import Array
from platoon_base.errors import PlatoonError
from platoon_plugins.keras.gradients import Batch, GradientAverage


class CompiledAverage(GradientAverage):
    """Averages gradients by calls from a compiled program; errors are stored for later calls."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._failure: PlatoonError | None = None

    def _forget(self) -> None:
        self._failure = None

    def average(self, batch: Batch) -> list[Any]:
        """Return averages in a traced program; None for weights without a gradient."""
        # These weights must be the same in every step and on all workers. Zeros are averaged for
        # them, as a worker without a batch cannot leave them out.
        self.require_attached()
        filled = [
            keras.ops.zeros(zeros.shape, zeros.dtype.name) if gradient is None else gradient
            for gradient, zeros in zip(batch.gradients, self.like)
        ]
        averages = self.average_in_program(batch._replace(gradients=filled))
        return [average if used else None for average, used in zip(averages, batch.used)]

    def average_in_program(self, batch: Batch) -> Sequence[Any]:
        """Return the averages of a batch's tensors, which are zeros for unused weights."""
        raise NotImplementedError

    def fill(self, batch: Batch, outs: Sequence[Array]) -> None:
        """Write averages to ``outs``, C-contiguous and possibly inputs; the program calls it."""
        self.require_sound()
        self.require_attached()
        try:
            with self.worker.advanced.clock.call_of_program():
                self._step(batch, outs)
        except PlatoonError as exc:
            self._failure = exc
            for out in outs:
                out[...] = 0

    def require_sound(self) -> None:
        if self._failure is not None:
            raise self._failure
