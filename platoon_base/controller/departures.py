"""Consequences of a worker's end: a restart, the end of the job, or another leader."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Sequence

from platoon_base.controller.outcome import (
    UNSAVED,
    ControllerOptions,
    Result,
    Snapshot,
    epochs_reached,
    first_failure,
    stop_cause,
)
from platoon_base.controller.processes import Exit, WorkerProcesses
from platoon_base.controller.restart_policy import Restart, RestartPolicy, WorkerFailed
from platoon_base.controller.saving import JobSaving
from platoon_base.coordination.actions import Action
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.roster import Phase
from platoon_base.errors import DataMismatchError, PlatoonError
from platoon_base.shm.job_state import JobState, Progress
from platoon_base.worker_process.failure import INTERRUPTED

log = logging.getLogger(__name__)

# All workers restart from the checkpoint, so they need no time to save.
_RESTART_GRACE_S = 0.8


def leader_of(snapshot: Snapshot) -> int:
    """Return the leader: the lowest launched rank that is not lost; 0 if all are lost."""
    launched = [each for each in snapshot.participants if each.launched]
    return min((each.rank for each in launched if each.phase is not Phase.LOST), default=0)


def fatal(ended: Exit, progress: Progress, fail_fast: str) -> str:
    """Return why this worker's end ends the job, or ''; ``progress`` is that worker's."""
    failure = ended.failure
    if not ended.status or fail_fast == "never" or (failure is not None and failure.follows):
        return ""
    if fail_fast == "always":
        return f"worker {ended.rank} failed ({ended}): ending the job because of --fail-fast"
    if failure is not None and failure.kind == DataMismatchError.__name__:
        return f"worker {ended.rank} has other data than another worker: ending the job"
    # Without an adapter, a script with collective calls may train without counting steps.
    counts = progress.bound or not progress.waits
    # With an adapter, an exchange before the first step was for an evaluation.
    exchanges = progress.syncs if progress.bound else progress.exchanges
    began = progress.steps > progress.steps_before_start or exchanges or not counts
    if began or failure is None or failure.kind == INTERRUPTED:
        return ""
    return (
        f"worker {ended.rank} failed before its first step ({failure.kind}): ending the job, "
        "since the others would train without its part of the data. With --allow-failures they "
        "continue"
    )


def lost_leader(exits: Sequence[Exit], steps: int, led: Sequence[int]) -> str:
    """Return what was not done because rank 0 failed while others ended well, or ''.

    ``steps`` are those of rank 0; ``led`` are the ranks that have been the leader since.
    """
    ended_well = [ended.rank for ended in exits if ended.status == 0]
    if not ended_well or not any(ended.rank == 0 and ended.status for ended in exits):
        return ""
    leader = min((rank for rank in led if rank in ended_well), default=0)
    text = f"worker 0 failed after {steps} mini-batches, and the others continued"
    if leader:
        text += (
            f". From then on worker {leader} was the leader: it ran the leader's callbacks or "
            "extensions, and what the script does if worker.is_leader"
        )
    return (
        f"{text}. What the script does only on rank 0 (if worker.global_rank == 0), such as "
        "saving the model, did not "
        f"happen{'' if leader else ': with worker.is_leader, another worker does it instead'}"
    )


def shared_nothing(exits: Sequence[Exit], adopted: Collection[int], coordinator: Coordinator) -> tuple[int, ...]:
    """Return the launched workers that ended well and never exchanged anything with others."""
    if coordinator.roster.size < 2:
        return ()
    ended_well = {ended.rank for ended in exits if ended.status == 0}
    return tuple(sorted(ended_well - set(adopted) - (coordinator.cooperated - coordinator.separate)))


class Departures:
    """Handles the ends of workers and records how each has ended."""

    def __init__(
        self,
        job_state: JobState,
        coordinator: Coordinator,
        children: WorkerProcesses,
        decide: Callable[[Callable[[Coordinator], list[Action]]], None],
        options: ControllerOptions,
        saving: JobSaving | None,
    ) -> None:
        self.exits: list[Exit] = []  # Exits of workers that are not restarted.
        self.failed: list[Exit] = []  # Failures in order, also of restarted workers.
        self.adopted: set[int] = set()  # Workers that the controller did not start.
        self._job_state = job_state
        self._coordinator = coordinator
        self._children = children
        self._decide = decide
        self._fail_fast, self._grace_s = options.fail_fast, options.grace
        self._shows = options.observer is not None
        self._saving = saving
        self._policy = RestartPolicy(options.max_restarts, has_checkpoints=saving is not None)
        self._fatal: Exit | None = None  # The failure that ended the job.
        self._ends_all: Exit | None = None  # The failure that led to a restart of all workers.

    def worker_ended(self, ended: Exit) -> None:
        """Report the end of a worker to the coordinator; restart it or end the job where needed."""
        participant = self._coordinator.roster[ended.rank]
        present = participant.phase.present
        if self._job_state.progress(ended.rank).exchanges:
            self._coordinator.cooperated.add(ended.rank)
        if ended.rank in self.adopted and present:
            ended = ended._replace(status=1)  # The real status is unknown here.
        device = f"{participant.device}, " if participant.device else ""
        log_file = f", see {ended.log_file.absolute()}" if ended.log_file is not None else ""
        self._job_state.write_text(ended.rank, "ending", f"{device}{ended}{log_file}")
        lost = ended.status != 0 or present
        shown = self._children.stopping or self._shows
        level = logging.WARNING if lost and not (shown and ended.status) else logging.INFO
        how = " without leaving the job" if present else ""
        log.log(level, "rank %d ended%s: %s%s", ended.rank, how, ended.cause if ended.status else ended, log_file)
        why = f"{ended.cause if ended.status else ended}{how}" if lost else ""
        self._decide(lambda coordinator: coordinator.worker_ended(ended.rank, lost, why))
        self._note_failure(ended)
        if not self._start_again(ended):
            self.exits.append(ended)
            self._end_if_fatal(ended)

    def _note_failure(self, ended: Exit) -> None:
        """Record a failed worker; an end by a signal to all workers is no failure."""
        follows = ended.failure is None or ended.failure.follows
        if ended.status and not (self._children.stopping and follows):
            self.failed.append(ended)

    def _end_if_fatal(self, ended: Exit) -> None:
        if self._children.stopping or not self._children.running:
            return
        why = fatal(ended, self._job_state.progress(ended.rank), self._fail_fast)
        if why and ended.rank < self._coordinator.roster.size:
            self._fatal = ended
            log.warning("%s", why)
            self._decide(lambda coordinator: coordinator.stop(f"worker {ended.rank} failed"))
            self._children.stop(self._grace_s)

    def _start_again(self, ended: Exit) -> bool:
        """Restart a failed worker if the policy allows it; return whether it was restarted."""
        if ended.status == 0:
            return False
        coordinator = self._coordinator
        restart, warning = self._policy.worker_failed(
            WorkerFailed(
                ended.rank,
                adopted=ended.rank in self.adopted,
                stopping=self._children.stopping or self._job_state.stopping,
                bound=coordinator.bound,
                centers_dropped=coordinator.centers_dropped,
                host_lost=coordinator.roster[ended.rank].host_index in coordinator.lost_hosts,
                some_host_lost=bool(coordinator.lost_hosts),
            )
        )
        if warning:
            log.warning("%s", warning)
        if restart is Restart.ALL:
            self._coordinator.story.add("job", [], "", "ends, to restart all workers", warning)
            self._ends_all = ended
            self._children.stop(_RESTART_GRACE_S)
        return restart is Restart.THIS_ONE and self._start_one_again(ended.rank, warning)

    def _start_one_again(self, rank: int, why: str) -> bool:
        self._coordinator.readmit(rank, self._job_state.position(rank), why)
        try:
            self._children.start_again(rank)
        except (OSError, PlatoonError) as exc:
            text = f"cannot be started again: {exc}"
            log.error("rank %d %s", rank, text)
            self._decide(lambda coordinator: coordinator.worker_ended(rank, lost=True, why=text))
            return False
        return True

    def host_returns(self, ranks: Sequence[int]) -> str:
        """Readmit the workers of a lost host; return why that is impossible, or ''."""
        if self._coordinator.bound:
            return "the workers depend on each other (averaged gradients), so a single one cannot be restarted"
        if self._children.stopping or self._job_state.stopping or not self._children.running:
            return "the job is ending"
        for rank in ranks:
            self._coordinator.readmit(rank, self._job_state.position(rank), "its host has returned")
        self.exits = [ended for ended in self.exits if ended.rank not in ranks]
        return ""

    def result(self, seconds: float, ended_by: signal.Signals | None) -> Result:
        """Return how the job ended; ``ended_by`` is the signal that ended it, if any."""
        interrupted = ended_by is not None
        status = max((ended.status for ended in self.exits), default=0)
        for ended in (self._ends_all, self._fatal):
            # The exit status of the other workers shows only the signal.
            status = status if ended is None else ended.status
        if ended_by is not None:
            status = 128 + ended_by
        failed = first_failure([ended for ended in self.exits if ended in self.failed])
        # A fatal failure is the cause itself, not the reason given to the other workers.
        reason = "" if self._fatal is not None else self._job_state.stop_reason
        ended_well = [ended.rank for ended in self.exits if ended.status == 0 and self._fatal is None]
        how_far = epochs_reached(self._job_state.progress(rank) for rank in ended_well)
        again = self._policy.all_again(
            interrupted,
            some_ended_well=bool(ended_well),
            checkpoint_unfinished=self._saving is not None and self._saving.checkpointer.writing,
        )
        tally = None if self._saving is None else self._saving.checkpointer.tally
        if tally is not None and tally.unsaved:
            status = status or UNSAVED
        roster = self._coordinator.roster
        return Result(
            status,
            seconds,
            stop_cause(reason, failed, bool(ended_well), how_far),
            dict(self._coordinator.reported),
            self.exits,
            interrupted,
            self._policy.restarts + again,
            again,
            () if interrupted else shared_nothing(self.exits, self.adopted, self._coordinator),
            tally,
            failed,
            lost_leader="" if interrupted else self._lost_leader(),
            joined=max(0, len(roster) - roster.size),
        )

    def _lost_leader(self) -> str:
        if self._fatal is not None:
            return ""
        led = [rank for rank in self._coordinator.roster if self._job_state.row(rank)["led"]]
        return lost_leader(self.exits, self._job_state.progress(0).steps, led)
