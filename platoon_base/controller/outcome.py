"""Options of a controller, and its reports: snapshots, values of workers, the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from platoon_base.channels.server import UserHandler
from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.processes import Exit
from platoon_base.coordination import messages as msg
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.coordination.stopping import Budget, Spent
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import PhaseTimes
from platoon_base.timeouts import timeout

_SENT = 500  # Characters of a value in a message.
STOPPED_FROM_OUTSIDE = "platoon stop"  # A reason to stop.
# Exit status: the workers ended well, but the last checkpoint could not be written.
UNSAVED = 2


class Snapshot(NamedTuple):
    """The state of a job at one moment, for a display."""

    participants: list[Participant]
    progress: dict[int, Progress]
    reported: Mapping[str, float | str]
    stop_reason: str | None
    seconds: float
    missed_checkpoints: int = 0
    failed: Sequence[Exit] = ()  # Failures, also of restarted workers.
    interrupted: bool = False  # Whether a signal or ``platoon stop`` ended the job.
    saved_checkpoints: int = 0
    phases: Mapping[int, PhaseTimes] = MappingProxyType({})  # Times by rank; empty in an observer.
    # Workers whose script has raised an exception; their processes may still run.
    failing: Collection[int] = ()
    reported_in: Mapping[str, int] = {}  # Epoch of each value.
    settings: Mapping[str, float | str] = MappingProxyType({})  # Hyperparameters; empty in an observer.

    @property
    def here(self) -> list[Participant]:
        """The participants that are not gone."""
        return [each for each in self.participants if not each.phase.gone]

    def to_message(self) -> msg.Seen:
        """Return a message for observers of the job, without the failures."""
        return msg.Seen(
            workers=[
                msg.SeenWorker(
                    rank=each.rank,
                    phase=each.phase,
                    launched=each.launched,
                    device=each.device,
                    progress=self.progress[each.rank]._asdict(),
                )
                for each in self.participants
            ],
            reported={name[:_SENT]: v[:_SENT] if isinstance(v, str) else v for name, v in self.reported.items()},
            stop=self.stop_reason or "",
            seconds=self.seconds,
            missed_checkpoints=self.missed_checkpoints,
            reported_in={name[:_SENT]: epoch for name, epoch in self.reported_in.items()},
        )

    @classmethod
    def of_message(cls, seen: msg.Seen) -> Snapshot:
        """Undo `to_message`; raises TypeError if the sender's version has other progress rows."""
        # The message has no flag for an interruption: the reason to stop shows it.
        interrupted = seen.stop.startswith("SIG") or seen.stop == STOPPED_FROM_OUTSIDE
        return cls(
            [Participant(each.rank, each.launched, Phase(each.phase), device=each.device) for each in seen.workers],
            {each.rank: _progress_of(each.progress) for each in seen.workers},
            seen.reported,
            seen.stop or None,
            seen.seconds,
            seen.missed_checkpoints,
            interrupted=interrupted,
            reported_in=seen.reported_in,
        )


def _progress_of(values: Mapping[str, Any]) -> Progress:
    """Return the progress; fields that only another version has are ignored."""
    return Progress(**{name: value for name, value in values.items() if name in Progress._fields})


class Reported(NamedTuple):
    """Values that a worker has just reported, and the progress of the job."""

    values: Mapping[str, float | str]
    spent: Spent
    syncs: float  # Mean number of synchronizations of a launched worker.
    rule: str  # The rule with its known arguments; '' while no parameters are shared.


class Result(NamedTuple):
    """How a job ended."""

    status: int  # The worst status of all workers; 128 + n if signal n ended the job.
    seconds: float  # Time from the controller's start to the end of the last worker.
    stopped_by: str  # See `stop_cause`.
    reported: Mapping[str, float | str]  # Last value of each name.
    exits: list[Exit]  # Exits in order of time, without those of restarted workers.
    interrupted: bool = False  # Whether a signal to the controller ended the job.
    restarts: int = 0  # A restart of all workers counts as one.
    again: bool = False  # Whether all workers are to be restarted.
    shared_nothing: tuple[int, ...] = ()
    checkpoints: Tally | None = None  # A job without its last checkpoint fails.
    failed: Exit | None = None  # The first failure, even if other workers ended well.
    lost_leader: str = ""  # What was not done because rank 0 failed.
    joined: int = 0  # Number of late joiners.

    @property
    def first_failure(self) -> str:
        """The first failed worker and the cause in one line; empty if none failed."""
        return "" if self.failed is None else f"worker {self.failed.rank}: {self.failed.cause}"

    def with_failures_allowed(self) -> Result:
        """Return a success if some worker ended well and the job was not interrupted."""
        ended_well = any(ended.status == 0 for ended in self.exits)
        unsaved = self.checkpoints is not None and self.checkpoints.unsaved
        return self._replace(status=UNSAVED if unsaved else 0) if ended_well and not self.interrupted else self


def first_failure(exits: Sequence[Exit]) -> Exit | None:
    """Return the first failure; prefer one that is not the result of another worker's loss."""
    failed = [ended for ended in exits if ended.status]
    follows = {ended.rank: ended.failure is not None and ended.failure.follows for ended in failed}
    return min(failed, key=lambda ended: (follows[ended.rank], ended.at), default=None)


def stop_cause(reason: str | None, failed: Exit | None, some_ended_well: bool, how_far: str = "") -> str:
    """Return in one line what ended a job: a reason to stop, the end of the script or a failure."""
    if reason:
        return reason
    if failed is None or some_ended_well:
        return f"end of script{how_far}"
    return f"worker {failed.rank}: {failed.cause}"


def epochs_reached(progress: Iterable[Progress]) -> str:
    """Return the epoch reached if workers ended before the last one; otherwise ''."""
    far = max(progress, key=lambda each: each.epoch, default=None)
    if far is None or not 0 < far.epoch < far.last_epoch:
        return ""
    return f", after epoch {far.epoch} of {far.last_epoch}{f' ({far.limit})' if far.limit else ''}"


@dataclass(frozen=True)
class ControllerOptions:
    handler: UserHandler | None = None  # It answers the requests of `Worker.send_req`.
    observer: Callable[[Snapshot], None] | None = None
    observe_every_s: float = 0.5
    on_report: Callable[[Reported], None] | None = None  # A reporting worker waits for this call.
    budget: Budget | None = None
    max_restarts: int = 0  # The limit for the whole job.
    # Failures of one worker that end the job: "never", "early" (before its first step), "always".
    fail_fast: str = "never"
    grace_s: float | None = None  # Time for workers to end after a signal; None for the timeout.

    @property
    def grace(self) -> float:
        return timeout("grace") if self.grace_s is None else self.grace_s
