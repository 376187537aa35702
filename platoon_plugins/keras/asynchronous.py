"""Asynchronous training: workers train independently and synchronize with the center."""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.errors import PlatoonError
from platoon_base.rules import Rule, overlap_of, shares_moments, waits
from platoon_base.schedule import EveryN
from platoon_base.worker import LossWatch, checksums
from platoon_plugins.keras.backends.base import Backend, Variable
from platoon_plugins.keras.constraints import constraints_of
from platoon_plugins.keras.mode import Mode
from platoon_plugins.keras.optimizer_state import begin_averages, end_averages, keeps_averages, require_built

__all__ = ["Asynchronous", "abandon_center"]

log = logging.getLogger(__name__)


class Asynchronous(Mode):
    """Mode in which each worker synchronizes its own weights with the center every N batches."""

    def __init__(self, worker: Worker, backend: Backend, rule: Rule, every_n_batches: int, policy: str) -> None:
        self.rule = rule
        self._worker, self._backend, self._policy = worker, backend, policy
        self._every_n_batches, self._period = every_n_batches, EveryN(every_n_batches)
        self._losses = LossWatch(worker.global_rank)
        self._epochs_over = 0
        self._participants: list[int] = []
        self._model: Any = None
        self._weights: list[Variable] = []
        self._moments: list[Variable] = []
        self._apply_constraints: Callable[[], object] | None = None
        self._swapped: contextlib.ExitStack | None = None
        self._entered_checksums: list[int] = []

    def describe(self, model: Any) -> str:
        return f"rule={self.rule!r}, every_n_batches={self._every_n_batches}"

    def moments(self, model: Any) -> list[Any]:
        if not shares_moments(self.rule):
            return []
        require_built(model)
        begin_averages(model)
        return self._backend.moments(model)

    def start(self, model: Any, participants: list[int]) -> None:
        """Start; the weights are shared already."""
        self._model, self._participants = model, participants
        self._weights = self._backend.weights(model)
        self._moments = self._backend.moments(model) if shares_moments(self.rule) else []
        self._apply_constraints = constraints_of(self._weights)
        # The rule does not apply constraints to the center in a checkpoint.
        if self._worker.resume_at.steps:
            self._constrain()

    def batches_done(self, count: int) -> None:
        """Synchronize if it is due; complete an overlapping round after its part of the period."""
        due = sum(self._period.due() for _ in range(count))
        overlap = overlap_of(self.rule)
        if due:
            self._sync(1.0)
        elif overlap and self._worker.advanced.round_under_way and self._period.is_past(overlap):
            self._backend.attach(self._model, only_weights=True)
            self._worker.advanced.complete_round()
            self._constrain()

    @property
    def stops(self) -> bool:
        votes = self._worker.advanced.stop_votes
        return bool(votes.voters()) and votes.passed(self._policy, self._participants)

    def vote(self) -> None:
        self._worker.advanced.stop_votes.cast()

    def epoch_ends(self) -> None:
        """Synchronize the batches since the last synchronization."""
        self._epochs_over += 1
        ended_by_a_stop = self._model.stop_training or self.stops
        if self._epochs_over == 1 and not self._period.periods and not ended_by_a_stop:
            log.warning(
                "rank %d: an epoch has %d batch%s, so every_n_batches=%d is never reached: the workers synchronize at "
                "the end of epochs only; make it smaller (sync_every of prepare), or let epochs be longer",
                self._worker.global_rank,
                self._period.count,
                "" if self._period.count == 1 else "es",
                self._every_n_batches,
            )
        self._sync(self._period.part, whole=True)
        self._period = EveryN(self._period.n)

    def set_participants(self, ranks: list[int]) -> None:
        self._participants = ranks

    def enter_center(self) -> None:
        """Give the model the center's weights, after all workers have synchronized."""
        # If the script ends by an exception, the back end can still import modules in atexit.
        if not _entered:
            atexit.unregister(_leave_all)
            atexit.register(_leave_all)
        _entered[self._worker] = self
        self._worker.average_hosts()
        self._swapped = contextlib.ExitStack()
        self._swapped.enter_context(self._worker.center_params())
        self._constrain()
        self._entered_checksums = self._checksums()

    def take_loss(self, loss: float) -> None:
        """Shorten steps if the loss, which is equal on all workers, has risen."""
        first = self._worker.global_rank == min(self._participants, default=0)
        if not self._losses.epoch_ends(loss, self.rule, tells=first):
            return
        said = self._worker.advanced.shorten_steps()
        if said and first:
            log.warning(
                "rank %d: the loss of training is %.4g, more than twice its best, so steps become shorter: %s",
                self._worker.global_rank,
                loss,
                said,
            )

    def report(self) -> dict[str, float]:
        """Report whether a callback has changed the weights since `enter_center`."""
        return {"changed": float(self._swapped is not None and self._checksums() != self._entered_checksums)}

    def take_reports(self, reports: Mapping[int, Mapping[str, float]]) -> None:
        """Copy weights that callbacks have changed to the center; then a barrier."""
        if any(report["changed"] for report in reports.values()):
            if reports[self._worker.global_rank]["changed"]:
                self.leave_center()
            self._worker.barrier(f"keras weights of callbacks {self._epochs_over}")

    def leave_center(self) -> None:
        """Restore the worker's own weights; changes by callbacks are copied to the center."""
        if self._swapped is None:
            return
        changed = self._checksums() != self._entered_checksums
        now = _copies(self._shared()) if changed else []
        self.leave_for_good()
        if changed:
            _set(self._shared(), now)
            self._worker.copy_to_global()
        elif waits(self.rule):  # Workers with fewer rounds start there too.
            self._worker.copy_to_local()
            self._constrain()

    @contextlib.contextmanager
    def center(self) -> Any:
        """Give the model the center's weights within the ``with`` block, in mid-epoch."""
        if self._swapped is not None:
            yield
            return
        self._backend.attach(self._model)
        with self._worker.center_params():
            self._constrain()
            yield

    def finish(self) -> None:
        self._backend.steps_are_over()
        if keeps_averages(self._model):
            self.leave_for_good()  # Keras has put the averages into the weights.
        self.pause()
        end_averages(self._model)

    def pause(self) -> None:
        """Stop sharing the weights; the model gets the center's."""
        self.leave_center()
        self._worker.copy_to_local()
        self._constrain()
        self._worker.release_shared_params()

    def abandon_center(self) -> None:
        """Clean up after a fit; the model keeps its current weights."""
        now = _copies(self._weights)
        self.leave_for_good()
        _set(self._backend.weights(self._model), now)

    def leave_for_good(self) -> None:
        """Restore the worker's own weights, discarding changes by callbacks."""
        if self._swapped is not None:
            self._swapped.close()
        self._swapped, self._entered_checksums = None, []
        _entered.pop(self._worker, None)

    def _sync(self, part: float, whole: bool = False) -> None:
        self._backend.attach(self._model, only_weights=True)
        if self.stops and not all(np.isfinite(values).all() for values in _copies(self._weights)):
            return  # TerminateOnNaN ends the fit: `on_nonfinite` must not raise.
        self._worker.sync_params(part=part, whole=whole)
        self._constrain()

    def _constrain(self) -> None:
        """Apply the constraints of weights, which the rule does not apply."""
        if self._apply_constraints is not None:
            self._apply_constraints()

    def _checksums(self) -> list[int]:
        """Return a checksum of each shared variable; copies would need more memory."""
        return checksums(self._shared())

    def _shared(self) -> list[Variable]:
        return [*self._weights, *self._moments]


def _copies(variables: Sequence[Variable]) -> list[np.ndarray[Any, Any]]:
    return [np.array(variable.get_value(borrow=True)) for variable in variables]


def _set(variables: Sequence[Variable], values: Sequence[np.ndarray[Any, Any]]) -> None:
    for variable, value in zip(variables, values):
        variable.set_value(value)


def abandon_center(worker: Worker) -> None:
    """Clean up after a fit that raised while the model had the center's weights."""
    if worker in _entered:
        _entered[worker].abandon_center()


def _leave_all() -> None:
    """Restore the own weights of all workers of this process at exit."""
    for worker, fit in list(_entered.items()):
        try:
            fit.leave_for_good()
        except PlatoonError as exc:
            log.debug("rank %d: the center stays in the model at the end: %s", worker.global_rank, exc)


# Fits whose models have the center's weights. The reference prevents garbage collection, which
# would restore the own weights.
_entered: dict[Worker, Asynchronous] = {}
