"""One decision to stop for all workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.schedule import require_policy, votes_suffice
from platoon_plugins.blocks.extensions import DistributedExtension
from platoon_plugins.blocks.sync_points import Vote
from platoon_plugins.blocks.training import Training

__all__ = ["StopTogether"]

_INTERRUPTS = ("epoch_interrupt_received", "batch_interrupt_received")


class StopTogether(DistributedExtension):
    """End the main loops of all workers together, when extensions of one or more of them want to stop.

    Put one into the list of extensions, anywhere: it moves to the last position itself. A request to stop, such as that
    of `FinishAfter` or `FinishIfNoImprovementAfter`, counts as this worker's vote and stays one. The main loop goes on
    until the votes suffice. A main loop that was interrupted (Ctrl-C, SIGTERM), or a job that stops, ends all of them.

    With averaged gradients all workers end after the same batch. With a rule they wait for one another at the end of
    each epoch, and a stop in the middle of one reaches the others at their next batch.

    With one worker this extension does nothing.

    Parameters
    ----------
    policy : {"any", "all", "leader"}
        The votes that suffice: one, all, or that of the first worker present.
    name : str, optional
    """

    order = 1
    stops_together = True

    def __init__(self, *, policy: str = "any", name: str | None = None) -> None:
        require_policy(policy)
        super().__init__(name=name)
        self.policy = policy
        self._votes = self._interrupted = False

    def before_training(self) -> None:
        """Begin without a vote."""
        self._votes = self._interrupted = False

    def on_resumption(self) -> None:
        """Begin without a vote: training shall go on."""
        self._votes = self._interrupted = False

    def after_batch(self, batch: Any) -> None:
        """Vote, and end after this batch or go on."""
        training = self.training
        if training is not None and not training.finished:
            self._apply_stop_request("batch_interrupt_received")
            stop = self._decide_together(training) if training.lockstep else self._decide_alone(training)
            self._end_or_go_on(training, stop, "batch_interrupt_received")

    def after_epoch(self) -> None:
        """Vote, and end after this epoch or go on."""
        training = self.training
        if training is not None and not training.finished:
            self._apply_stop_request(*_INTERRUPTS)
            ends = self._interrupted or training.worker.should_stop
            meeting = training.meet("the end of an epoch", Vote.END if ends else Vote(self._votes))
            if meeting is not None:
                decided = votes_suffice(self.policy, meeting.voters, meeting.ranks)
                self._end_or_go_on(training, meeting.ends or decided, *_INTERRUPTS)

    def _apply_stop_request(self, *interrupts: str) -> None:
        row, status = self.main_loop.log.current_row, self.main_loop.status
        self._votes = self._votes or bool(row.get("training_finish_requested", False))
        self._interrupted = self._interrupted or any(status[name] for name in interrupts)

    def _decide_together(self, training: Training) -> bool:
        """Decide at the same batch on all workers; a collective call."""
        worker = training.worker
        mine = np.array([self._votes, self._interrupted or worker.should_stop], np.uint8)
        votes, ends = worker.all_gather(mine, timeout_s=training.timeout_s).T
        return bool(ends.any()) or votes_suffice(self.policy, np.flatnonzero(votes).tolist(), range(worker.global_size))

    def _decide_alone(self, training: Training) -> bool:
        """Decide by the votes so far, without waiting."""
        worker = training.worker
        if self._votes:
            worker.advanced.stop_votes.cast()
        if self._interrupted and not worker.should_stop:
            worker.request_stop(f"worker {worker.global_rank} was interrupted", timeout_s=training.timeout_s)
        return self._interrupted or worker.should_stop or worker.advanced.stop_votes.passed(self.policy, training.ranks)

    def _end_or_go_on(self, training: Training, stop: bool, *interrupts: str) -> None:
        """Let the main loop end, or make it go on."""
        row, status = self.main_loop.log.current_row, self.main_loop.status
        if stop:
            training.request_finish()
            return
        if row.get("training_finish_requested", False):
            row["training_finish_requested"] = False
        # A signal that came while the workers decided counts at the next batch.
        for name in interrupts:
            self._interrupted = self._interrupted or bool(status[name])
            status[name] = False
