"""The callbacks of a controller while it serves: snapshots for a display, values of workers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.departures import Departures
from platoon_base.controller.ending import Ending
from platoon_base.controller.options import ControllerOptions
from platoon_base.controller.outcome import Reported, Snapshot
from platoon_base.controller.saving import JobSaving
from platoon_base.coordination.budget import Spent
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.shm.job_state import JobState, Progress

__all__ = ["Reporting"]


class Reporting:
    """Calls the observers of a job; ``next_due`` is when to call `observe` next."""

    def __init__(
        self,
        job_state: JobState,
        coordinator: Coordinator,
        departures: Departures,
        ending: Ending,
        saving: JobSaving | None,
        options: ControllerOptions,
    ) -> None:
        self._job_state = job_state
        self._coordinator = coordinator
        self._departures = departures
        self._ending = ending
        self._saving = saving
        self._observer, self._observe_every_s = options.observer, options.observe_every_s
        self._on_report = options.on_report
        self._began = time.monotonic()
        self._shown_failures = 0
        self._epochs: dict[str, int] = {}  # the epoch of each reported value
        self.next_due = math.inf if self._observer is None else self._began

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def observe(self, now: float, at_once: bool = False) -> None:
        """Call the observer if it is due, or if a worker has failed since the last call."""
        failures = len(self._departures.failed)
        if self._observer is None or not (at_once or now >= self.next_due or failures != self._shown_failures):
            return
        self.next_due, self._shown_failures = now + self._observe_every_s, failures
        self._observer(self.snapshot(now))

    def snapshot(self, now: float) -> Snapshot:
        coordinator = self._coordinator
        tally = Tally() if self._saving is None else self._saving.tally
        return Snapshot(
            list(coordinator.roster.values()),
            {rank: self._job_state.progress(rank) for rank in coordinator.roster},
            coordinator.reported,
            self._job_state.stop_reason or None,  # Signals are included.
            now - self._began,
            tally.missed,
            list(self._departures.failed),
            self._ending.signal is not None,
            saved_checkpoints=tally.written,
            phases={rank: self._job_state.phases(rank) for rank in coordinator.roster},
            reported_in=dict(self._epochs),
            settings=coordinator.settings,
        )

    def spent(self) -> Spent:
        """Return how much of its budget the job has spent."""
        launched, now = self._launched(), time.monotonic()
        began = min((each.started for each in launched if each.started), default=now)
        return Spent(sum(each.steps for each in launched) / max(1, len(launched)), now - began, now - self._began)

    def take_report(self, values: Mapping[str, float | str], rank: int) -> None:
        """Record the epoch of values that a worker has reported, and call the callback."""
        epoch, known = self._job_state.progress(rank).epoch, self._coordinator.reported
        # Epochs of refused reports are dropped.
        kept = {name: epoch for name, epoch in self._epochs.items() if name in known}
        self._epochs = {**kept, **dict.fromkeys(values, epoch)}
        if self._on_report is None:
            return
        shared, launched = self._coordinator.shared, self._launched()
        syncs = sum(each.syncs for each in launched) / max(1, len(launched))
        rule = "" if shared is None else shared.settings or shared.rule
        self._on_report(Reported(values, self.spent(), syncs, rule))

    def _launched(self) -> list[Progress]:
        return [self._job_state.progress(each.rank) for each in self._coordinator.roster.values() if each.launched]
