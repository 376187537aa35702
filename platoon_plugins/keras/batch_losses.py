"""The loss of an epoch or an evaluation, where it is not a mean over rows: put together batch by batch."""

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
    """Keeps the loss of each batch, and combines the k-th of all workers into that of one large batch.

    ::

        loss := sum_k R_k L_k / sum_k R_k        L_k = sum_i w_ik l_ik / sum_i w_ik        R_k = sum_i rows_ik

    for worker i; w is what a mean was divided by, such as the number of tokens that are not masked. This is what Keras
    computes for N workers with batches of B rows as one process with batches of N B rows. Of losses that are sums,
    L_k = sum_i l_ik.

    Only what belongs to an epoch or an evaluation that has begun is kept, and that until the fit is over.

    Attributes
    ----------
    phase : {"train", "test"}
        What the batches belong to that do not say so themselves.
    """

    def __init__(self) -> None:
        self.phase = "train"
        self._batches: dict[str, list[tuple[Any, Any, Any]]] = {}

    def begin(self, phase: str) -> None:
        """Forget the batches of an earlier epoch or evaluation."""
        self.phase = phase
        self._batches[phase] = []

    def end(self) -> None:
        """Forget all batches, and keep none: batches from now on are no part of a fit."""
        self._batches = {}

    def add(self, loss: Any, weight: Any, rows: Any, training: bool | None = None) -> None:
        """Record a batch, of weight 0 if all of it is masked; ``weight`` None says that its loss is a sum.

        Values may be scalars on a device: they are fetched later, many at a time, as each step would wait for them.
        """
        batches = self._batches.get(self.phase if training is None else "train" if training else "test")
        if batches is not None:
            batches.append((loss, weight, rows))
            if not len(batches) % _FETCHED_AT_ONCE:
                batches[-_FETCHED_AT_ONCE:] = map(_fetched, batches[-_FETCHED_AT_ONCE:])

    def count(self, phase: str) -> int:
        """Return the number of batches whose loss is no mean over rows."""
        return len(self._batches.get(phase, ()))

    def combined(self, phase: str, worker: Worker, name: str) -> float:
        """Return the loss over all workers, the same everywhere; all of them call it, if one has such batches.

        Parameters
        ----------
        phase : {"train", "test"}
        worker : Worker
        name : str
            Another one each time.
        """
        length = max(worker.gather(self.count(phase), name=f"{name}, batches"))
        table = np.zeros((length, 3))
        for row, (loss, weight, rows) in zip(table, map(_fetched, self._batches.get(phase, ()))):
            row[:] = (loss, 0.0, rows) if weight is None else (loss * weight, weight, rows)
        total, divisor, rows = worker.advanced.sum_arrays(name, [table]).arrays[0].T
        # All tokens of all workers may be masked: then the loss is 0, as in one process.
        losses = total / np.where(divisor == 0, 1.0, divisor)
        return float((rows * losses).sum() / rows.sum())


def _fetched(batch: tuple[Any, Any, Any]) -> tuple[float, float | None, float]:
    """Return the numbers, which the host may have to wait for."""
    loss, weight, rows = batch
    return float(loss), None if weight is None else float(weight), float(rows)
