"""Losses that are not means over rows: combined over the workers batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker

__all__ = ["ADDED", "BatchLosses"]

Array = np.ndarray[Any, Any]
_FETCHED_AT_ONCE = 256
ADDED = (
    "got a model whose layers add losses (add_loss), and averaged gradients: such a loss is taken for a mean over the "
    "rows of a mini-batch. A sum over its rows counts N times less on N workers than in one process with mini-batches "
    "N times as large: divide it by the number of rows, keras.ops.shape(x)[0]. If it is a mean, or of weights alone, "
    "all is well"
)


class BatchLosses:
    """The losses of batches; the k-th batches of all workers are combined as one large batch."""

    # loss := sum_k R_k L_k / sum_k R_k, L_k = sum_i w_ik l_ik / sum_i w_ik, where R_k is the number
    # of rows of batch k and w_ik the divisor of worker i's loss. Losses that are sums add up. Only
    # batches of an epoch or evaluation that `begin` has started are recorded.

    def __init__(self) -> None:
        self.phase = "train"
        self._batches: dict[str, list[tuple[Any, Any, Any]]] = {}

    def begin(self, phase: str) -> None:
        """Start an epoch or evaluation ("train" or "test"), which becomes the phase of `add`."""
        self.phase = phase
        self._batches[phase] = []

    def end(self) -> None:
        self._batches = {}

    def add(self, loss: Any, weight: Any, rows: Any, training: bool | None = None) -> None:
        """Record a batch; ``weight`` divides its loss: 0 if all is masked, None for a sum."""
        batches = self._batches.get(self.phase if training is None else "train" if training else "test")
        if batches is not None:
            batches.append((loss, weight, rows))
            if not len(batches) % _FETCHED_AT_ONCE:
                batches[-_FETCHED_AT_ONCE:] = map(_fetched, batches[-_FETCHED_AT_ONCE:])

    def count(self, phase: str) -> int:
        return len(self._batches.get(phase, ()))

    def combined(self, phase: str, worker: Worker, name: str) -> float:
        """Return the loss over all workers; a collective call with a unique ``name``."""
        length = max(worker.gather(self.count(phase), name=f"{name}, batches"))
        table = np.zeros((length, 3))
        for row, (loss, weight, rows) in zip(table, map(_fetched, self._batches.get(phase, ()))):
            row[:] = (loss, 0.0, rows) if weight is None else (loss * weight, weight, rows)
        total, divisor, rows = worker.advanced.sum_arrays(name, [table]).arrays[0].T
        # If all tokens of all workers are masked, the loss is 0, as in one process.
        losses = total / np.where(divisor == 0, 1.0, divisor)
        return float((rows * losses).sum() / rows.sum())


def _fetched(batch: tuple[Any, Any, Any]) -> tuple[float, float | None, float]:
    """Return a batch's values as numbers; waits for the device."""
    loss, weight, rows = batch
    return float(loss), None if weight is None else float(weight), float(rows)
