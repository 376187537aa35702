"""`StopTogether`, the extension that stops all workers together."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.schedule import require_policy
from platoon_plugins.blocks.extensions import DistributedExtension
from platoon_plugins.blocks.training import Training, Vote

_INTERRUPTS = ("epoch_interrupt_received", "batch_interrupt_received")


class StopTogether(DistributedExtension):
    """End the main loops of all workers together when extensions of some of them request a stop.

    Add one to the list of extensions, at any position: it moves itself to the last. A request to
    stop, such as that of `FinishAfter` or `FinishIfNoImprovementAfter`, becomes this worker's
    permanent vote. Training continues until the votes suffice. An interrupt of one main loop
    (Ctrl-C, SIGTERM), or a stop of the job, ends all main loops.

    With averaged gradients all workers end after the same batch. With a rule they wait for each
    other at the end of each epoch, and a stop in the middle of an epoch reaches the others at their
    next batch. For a single worker this extension does nothing.

    Parameters
    ----------
    policy : {"any", "all", "leader"}
        Which votes suffice: any one, those of all workers, or that of the lowest rank present.
    name : str, optional
    """

    order = 1

    def __init__(self, *, policy: str = "any", name: str | None = None) -> None:
        require_policy(policy)
        super().__init__(name=name)
        self.policy = policy
        self._votes = self._interrupted = False

    def before_training(self) -> None:
        self._votes = self._interrupted = False

    def on_resumption(self) -> None:
        self._votes = self._interrupted = False

    def after_batch(self, batch: Any) -> None:
        training = self.training
        if training is not None and not training.ended:
            self._apply_stop_request("batch_interrupt_received")
            stop = self._decide_together(training) if training.lockstep else self._decide_alone(training)
            self._end_or_go_on(training, stop, "batch_interrupt_received")

    def after_epoch(self) -> None:
        training = self.training
        if training is not None and not training.ended:
            self._apply_stop_request(*_INTERRUPTS)
            ends = self._interrupted or training.worker.should_stop
            votes = training.meet("the end of an epoch", Vote.END if ends else Vote(self._votes))
            if votes is not None:
                self._end_or_go_on(training, training.decide(votes, Vote.END in votes.values()), *_INTERRUPTS)

    def _apply_stop_request(self, *interrupts: str) -> None:
        row, status = self.main_loop.log.current_row, self.main_loop.status
        self._votes = self._votes or bool(row.get("training_finish_requested", False))
        self._interrupted = self._interrupted or any(status[name] for name in interrupts)

    def _decide_together(self, training: Training) -> bool:
        """Decide at the same batch on all workers; a collective call."""
        worker = training.worker
        mine = np.array([self._votes, self._interrupted or worker.should_stop], np.uint8)
        votes, ends = worker.all_gather(mine, timeout_s=training.timeout_s).T
        return training.decide(dict(enumerate(votes)), bool(ends.any()))

    def _decide_alone(self, training: Training) -> bool:
        worker, decided = training.worker, training.vote(self._votes)
        if self._interrupted and not worker.should_stop:
            worker.request_stop(f"worker {worker.global_rank} was interrupted", timeout_s=training.timeout_s)
        return self._interrupted or worker.should_stop or decided

    def _end_or_go_on(self, training: Training, stop: bool, *interrupts: str) -> None:
        row, status = self.main_loop.log.current_row, self.main_loop.status
        if stop:
            training.request_finish()
            return
        if row.get("training_finish_requested", False):
            row["training_finish_requested"] = False
        # A signal that arrived during the decision counts at the next batch.
        for name in interrupts:
            self._interrupted = self._interrupted or bool(status[name])
            status[name] = False
