"""The decision to end a fit, by votes between batches and at the end of each epoch."""

from __future__ import annotations

import logging
from typing import Any

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.modes import Mode
from platoon_plugins.keras.read_order import describe, require_same_orders

log = logging.getLogger(__name__)


class Stopping:
    """Turns ``model.stop_training``, which callbacks set on one worker, into a vote."""

    def __init__(self, worker: Worker, model: Any, mode: Mode) -> None:
        self._worker, self._model, self._mode = worker, model, mode
        self._decided = self.voted_to_end = False

    def batch_begins(self) -> None:
        if self._mode.vote(False):
            self._model.stop_training = True

    def batch_ends(self) -> None:
        """Vote if a callback has stopped training; make Keras stop only if the votes suffice."""
        self._model.stop_training = self._mode.vote(bool(self._model.stop_training))

    def end_epoch(self) -> None:
        """Vote to end the fit after this batch; an error is then raised on all workers."""
        self._mode.vote()

    def epoch_ends(self, epoch: int) -> None:
        """Decide with all workers, after all callbacks, whether to end."""
        mode, job_stops = self._mode, self._worker.should_stop
        mode.voted |= bool(self._model.stop_training) or job_stops
        mine = [self._worker.global_rank, mode.voted, job_stops, mode.report(), describe(self._worker)]
        told = self._worker.gather(mine, name=f"keras vote {epoch}")
        require_same_orders(self._worker, [[rank, read] for rank, _, _, _, read in told])
        stopped = any(job_stops for _, _, job_stops, *_ in told)
        votes = {rank: voted for rank, voted, *_ in told}
        self._decided = mode.decide(votes, ends=stopped)
        self.voted_to_end = self._decided and not stopped
        if self._decided:
            voters = [rank for rank, voted in votes.items() if voted]
            log.info("the fit ends after epoch %d because of the votes of ranks %s", epoch + 1, voters)
        mode.take_reports({rank: report for rank, _, _, report, _ in told})
        self._model.stop_training = self._decided

    def require_decided_together(self) -> None:
        """Raise if Keras ends or continues the fit against the decision of all workers."""
        if bool(self._model.stop_training) != self._decided:
            raise ConfigurationError(
                "a callback after those of distribute() has stopped only this worker: pass all "
                "callbacks to distribute([...]), which then ends the fit for all workers"
            )
