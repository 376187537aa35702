"""Averages of the population statistics of BatchNormalization over the workers."""

from __future__ import annotations

import logging
from typing import Any

from platoon_base import Worker
from platoon_base.theano_ops import decay_as_one_process
from platoon_base.worker import State, agree
from platoon_plugins.blocks.model import collected_statistics, updates_of

__all__ = ["Statistics", "decay_statistics"]

log = logging.getLogger(__name__)


class Statistics:
    """Averages the population statistics, and records when they were last equal on all workers."""

    def __init__(self, worker: Worker, name: str, timeout_s: float) -> None:
        self._worker = worker
        self._name = name
        self._timeout_s = timeout_s
        # In batches; None before training begins.
        self._averaged_at: int | None = None
        self._warned = False

    def start(self, main_loop: Any) -> None:
        self._averaged_at = main_loop.status["iterations_done"]

    def average(self, main_loop: Any) -> None:
        """Average the statistics over all workers; a collective call."""
        self._averaged_at = main_loop.status["iterations_done"]
        statistics = collected_statistics(main_loop.algorithm)
        if not statistics:
            return
        states = [State(variable, "mean") for variable in statistics]
        agree(states, self._worker, f"statistics of {self._name}", timeout_s=self._timeout_s)

    def warn_if_own(self, main_loop: Any) -> None:
        """Warn once if the statistics have changed on this worker since the last average."""
        done = main_loop.status["iterations_done"]
        if self._warned or self._averaged_at in (None, done):
            return
        if collected_statistics(main_loop.algorithm):
            self._warned = True
            log.warning(
                "rank %d: saved or evaluated values have the population statistics of "
                "BatchNormalization of this worker alone, because the workers averaged theirs "
                "last after batch %d: put Checkpoint and DataStreamMonitoring after "
                "DistributedMonitoring, with the same triggers",
                self._worker.global_rank,
                self._averaged_at,
            )


def decay_statistics(algorithm: Any, workers: int) -> None:
    """Let moving averages decay as in ``workers`` times as many steps."""
    # In a compiled algorithm, only the number of workers can be changed.
    statistics = set(collected_statistics(algorithm))
    if not statistics:
        return
    found = [(variable, value) for variable, value in updates_of(algorithm) if variable in statistics]
    changed = dict(decay_as_one_process(found, workers))
    if not hasattr(algorithm, "_function"):
        pairs = algorithm.updates.items() if hasattr(algorithm.updates, "items") else algorithm.updates
        algorithm.updates = [(variable, changed.get(variable, value)) for variable, value in pairs]
