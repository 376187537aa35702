"""The checkpoints of a job: when one is written, what it holds, and the wait for the last one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from platoon_base.checkpoints.files import About
from platoon_base.checkpoints.writer import CheckpointWriter
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.coordination.actions import Shared
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.errors import ConfigurationError
from platoon_base.shm.job_state import JobState
from platoon_base.system.environment import threads_of
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_AGAIN_S = 2e-3  # Pause between two attempts to save between turns.
_NO_PARAMETERS = (
    "the checkpoints of this job have no parameters, since its workers share none (averaged "
    "gradients need no center): a job resumed from them starts with new values. docs/saving.md "
    "shows how the script adds its parameters; or save and load them with the framework"
)


class TurnLock(NamedTuple):
    """The lock that a worker holds while it has its turn at the center."""

    try_lock: Callable[[], bool]
    unlock: Callable[[], None]


class JobSaving:
    """Starts the checkpoints of one job; another thread writes them.

    With ``turns`` a checkpoint shows one moment between two turns. ``seconds_before`` is the time
    that the job ran before it was resumed.
    """

    def __init__(
        self,
        checkpointer: CheckpointWriter,
        job_state: JobState,
        coordinator: Coordinator,
        hosts: OtherHosts | None,
        seconds_before: float,
        turns: TurnLock | None,
    ) -> None:
        self.checkpointer = checkpointer
        self._job_state = job_state
        self._coordinator = coordinator
        self._hosts = hosts
        self._began = time.monotonic() - seconds_before
        self._turns = turns
        self._missed = 0  # Missed checkpoints in the event log.
        self._warned_of_no_parameters = False

    def save_if_due(self, now: float) -> None:
        """Start a checkpoint if one is due; raises ConfigurationError if the first one failed."""
        self._record_missed()
        problem = self.checkpointer.take_problem()
        if problem:
            raise ConfigurationError(problem)
        shared = self._coordinator.shared
        if self.checkpointer.due(now, None if shared is None else shared.layout):
            if self._turns is None:
                self._save()
            elif not self._save_between_turns(self._turns):
                self.checkpointer.postpone(now + _AGAIN_S)

    def _save_between_turns(self, turns: TurnLock) -> bool:
        """Save center and positions while no worker has a turn; return whether that succeeded."""
        if not turns.try_lock():
            return False
        try:
            shared = self._coordinator.shared
            if not self._at_one_round():
                return False
            self._begin(shared, at_once=True)
        finally:
            turns.unlock()
        return True

    def _at_one_round(self) -> bool:
        """Whether all workers of the latest round have made its step: the center is theirs.

        False after a round without a lost worker, which no other run would repeat.
        """
        number, ranks = self._coordinator.latest_round
        return all(self._job_state.table[rank]["round"] == number for rank in ranks)

    def _record_missed(self) -> None:
        tally = self.checkpointer.tally
        if tally.missed > self._missed:
            self._missed = tally.missed
            self._coordinator.story.add("checkpoint", [], "", f"not written, {tally.missed} missed", tally.unsaved)

    def _save(self) -> None:
        shared = self._coordinator.shared
        about = self._begin(shared)
        if self._hosts is not None and about is not None:
            parameters = [] if shared is None else [tuple(spec) for spec in shared.layout.specs]
            self._hosts.saved(msgspec.structs.replace(about, parameters=parameters), self.checkpointer.folder)

    def _begin(self, shared: Shared | None, at_once: bool = False) -> About | None:
        """Begin a checkpoint; None if it would be empty, as after a failed import."""
        progress = map(self._job_state.progress, self._coordinator.roster)
        trained = any(each.steps > each.steps_before_start for each in progress)
        # Positions are read before the center: a resume skips no batch, but may repeat some.
        about = self._about(shared)
        if shared is None and not about.kept and not trained:
            self.checkpointer.skip()
            return None
        self.checkpointer.begin(about, None if shared is None else shared.layout, at_once)
        if trained and not self._warned_of_no_parameters and not self.checkpointer.keeps_center:
            self._warned_of_no_parameters = True
            log.warning("%s", _NO_PARAMETERS)
        return about

    def save_dropped(self, shared: Shared) -> None:
        """Save a center that the workers are about to release."""
        self.checkpointer.end(self._about(shared), shared.layout)

    def save_the_end(self, may_wait: Callable[[], bool], serve: Callable[[], object]) -> None:
        """Write the last checkpoint, calling ``serve`` to handle requests meanwhile.

        ``may_wait`` returns False to give up, as after a second signal.
        """
        self._await(may_wait, serve)
        if self._turns is not None and not self._at_one_round():
            log.info(
                "the workers ended within a round, or lost one before it: the previous checkpoint stays the newest"
            )
        elif may_wait() and not self.checkpointer.writing:
            self._save()
            self._await(may_wait, serve)
        self.checkpointer.give_up(
            f"it was not written to {self.checkpointer.folder}, because there was no progress "
            f"for {timeout('checkpoint'):g} s or a second signal. Check that disk; the previous "
            "checkpoint still exists"
        )
        self._record_missed()

    def _await(self, may_wait: Callable[[], bool], serve: Callable[[], object]) -> None:
        while self.checkpointer.writing and may_wait():
            serve()
            if self.checkpointer.is_stalled(time.monotonic()):
                return

    def _about(self, shared: Shared | None) -> About:
        coordinator = self._coordinator
        roster = coordinator.roster
        return About(
            seed=roster.seed,
            size=roster.size,
            seconds=time.monotonic() - self._began,
            rule=shared.rule if shared is not None else "",
            settings=shared.settings if shared is not None else "",
            positions={rank: self._job_state.position(rank) for rank in roster},
            # Without rounds one worker may be saved before a barrier and another after it.
            bound=coordinator.bound and (self._turns is None or not coordinator.latest_round[0]),
            kept={rank: participant.kept for rank, participant in roster.items() if participant.kept},
            reported=dict(coordinator.reported),
            threads="" if self._turns is None else threads_of(os.environ),
        )
