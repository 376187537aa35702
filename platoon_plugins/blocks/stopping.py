"""One decision to stop for all workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import STOP_POLICIES, votes_suffice
from platoon_plugins.blocks.members import Member
from platoon_plugins.blocks.training import Training, Vote

__all__ = ["StopTogether"]

_INTERRUPTS = ("epoch_interrupt_received", "batch_interrupt_received")


class StopTogether(Member):
    """End the main loops of all workers together, whichever extension wants to stop whichever of them.

    Put one into the list of extensions, anywhere: it takes the last place itself. A request to stop, such as that of
    `FinishAfter` or `FinishIfNoImprovementAfter`, counts as this worker's vote and stays one; until the votes suffice
    the main loop goes on. A main loop that was interrupted (Ctrl-C, SIGTERM), or a job that stops, ends them all.

    With averaged gradients all workers end after the same batch. With a rule they wait for one another at the end of
    each epoch, and a stop in the middle of one reaches the others at their next batch.

    In a job of one this extension does nothing.

    Parameters
    ----------
    policy : {"any", "all", "leader"}
        Whose votes are needed: one, all, or that of the first worker present.
    name : str, optional
    """

    place = 1
    stops_together = True

    def __init__(self, policy: str = "any", name: str | None = None) -> None:
        if policy not in STOP_POLICIES:
            raise ConfigurationError(f"got policy={policy!r}: it must be one of {', '.join(STOP_POLICIES)}")
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
        """Vote, and tell whether to end after this batch."""
        training = self.training
        if training is not None and not training.finished:
            self._take_up_request("batch_interrupt_received")
            stop = self._all_tell(training) if training.lockstep else self._sees(training)
            self._answer(training, stop, "batch_interrupt_received")

    def after_epoch(self) -> None:
        """Vote, and tell whether to end after this epoch."""
        training = self.training
        if training is not None and not training.finished:
            self._take_up_request(*_INTERRUPTS)
            ends = self._interrupted or training.worker.should_stop
            meeting = training.meet("the end of an epoch", Vote.END if ends else Vote(self._votes))
            if meeting is not None:
                decided = votes_suffice(self.policy, meeting.voters, set(meeting.ranks))
                self._answer(training, meeting.ends or decided, *_INTERRUPTS)

    def _take_up_request(self, *interrupts: str) -> None:
        row, status = self.main_loop.log.current_row, self.main_loop.status
        self._votes = self._votes or bool(row.get("training_finish_requested", False))
        self._interrupted = self._interrupted or any(status[name] for name in interrupts)

    def _all_tell(self, training: Training) -> bool:
        """Decide at the same batch on all workers, which tell one another."""
        worker = training.worker
        leader = worker.global_rank == 0
        told = np.array([self._votes, self._votes and leader, self._interrupted or worker.should_stop], np.int64)
        votes, leaders, ends = worker.all_reduce(told, timeout_s=training.timeout_s)
        enough = {"any": votes > 0, "all": votes == worker.global_size, "leader": leaders > 0}
        return bool(ends or enough[self.policy])

    def _sees(self, training: Training) -> bool:
        """Decide by the votes there are, without waiting for anybody."""
        worker = training.worker
        if self._votes:
            worker.stop_votes.cast()
        if self._interrupted and not worker.should_stop:
            worker.request_stop(f"worker {worker.global_rank} was interrupted", timeout_s=training.timeout_s)
        return self._interrupted or worker.should_stop or worker.stop_votes.passed(self.policy, training.members)

    def _answer(self, training: Training, stop: bool, *interrupts: str) -> None:
        """Let the main loop end, or make it go on."""
        row, status = self.main_loop.log.current_row, self.main_loop.status
        if stop:
            training.request_finish()
            return
        if row.get("training_finish_requested", False):
            row["training_finish_requested"] = False
        # A signal that came while the others were being told is for the next batch.
        for name in interrupts:
            self._interrupted = self._interrupted or bool(status[name])
            status[name] = False
