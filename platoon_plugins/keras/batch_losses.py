"""The loss of an epoch or an evaluation, where it is not a mean over rows: put together batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base import Worker

__all__ = ["BatchLosses"]

Array = np.ndarray[Any, Any]


class BatchLosses:
    """Keeps the loss of each batch, and combines the k-th of all workers into that of one large batch.

    ::

        loss := sum_k R_k L_k / sum_k R_k        L_k = sum_i w_ik l_ik / sum_i w_ik        R_k = sum_i rows_ik

    for worker i; w is what a mean was divided by, such as the number of tokens that are not masked. This is what Keras
    computes for N workers with batches of B rows as one process with batches of N B rows. Of losses that are sums,
    L_k = sum_i l_ik.

    Attributes
    ----------
    phase : {"train", "test"}
        What the batches belong to that do not say so themselves.
    """

    def __init__(self) -> None:
        self.phase = "train"
        self._batches: dict[str, list[tuple[float, float, float, float]]] = {"train": [], "test": []}

    def begin(self, phase: str) -> None:
        """Forget the batches of an earlier epoch or evaluation."""
        self.phase = phase
        self._batches[phase] = []

    def add(self, loss: float, weight: float, rows: float, training: bool | None = None) -> None:
        """Take note of a batch; ``weight`` 0 says that its loss is a sum."""
        phase = self.phase if training is None else "train" if training else "test"
        divisor = weight or 0.0
        self._batches[phase].append((float(loss) * (divisor or 1.0), divisor, float(rows), float(not weight)))

    def count(self, phase: str, worker: Worker) -> Array:
        """Return the number of batches, at this rank's place among zeros, for the workers to add up."""
        counts = np.zeros(worker.global_size)
        counts[worker.global_rank] = len(self._batches[phase])
        return counts

    def combined(self, phase: str, worker: Worker, name: str, counts: Array) -> float | None:
        """Return the loss over all workers, the same everywhere; None if it is a mean over rows, which Keras keeps.

        Parameters
        ----------
        counts : ndarray
            The sum of what all workers' `count` returned.
        """
        length = round(float(counts.max()))
        if not length:
            return None
        table = np.zeros((length, 4))
        mine = self._batches[phase]
        table[: len(mine)] = np.reshape(mine, (-1, 4))
        total, divisor, rows, sums = worker.sum_arrays(name, [table]).arrays[0].T
        # All tokens of a batch may be masked: then its loss is 0, as in one process.
        losses = total / np.where((sums > 0) | (divisor == 0), 1.0, divisor)
        return float((rows * losses).sum() / rows.sum())
