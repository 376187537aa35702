"""Types with which a controller reports about a job: snapshots, values of workers, the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.processes import Exit
from platoon_base.coordination import messages as msg
from platoon_base.coordination.budget import Spent
from platoon_base.coordination.phase import Phase
from platoon_base.coordination.roster import Participant
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import PhaseTimes

__all__ = [
    "STOPPED_FROM_OUTSIDE",
    "UNSAVED",
    "Reported",
    "Result",
    "Snapshot",
    "epochs_reached",
    "first_failure",
    "stop_cause",
]

_SENT = 500  # characters of a value in a message
STOPPED_FROM_OUTSIDE = "platoon stop"  # the reason to stop
UNSAVED = 2  # status of a job whose workers ended well, but whose last checkpoint could not be written


class Snapshot(NamedTuple):
    """The state of a job at one moment, for a display."""

    participants: list[Participant]
    progress: dict[int, Progress]
    reported: Mapping[str, float | str]
    stop_reason: str | None
    seconds: float
    missed_checkpoints: int = 0
    failed: Sequence[Exit] = ()  # so far, including those that were restarted
    interrupted: bool = False  # whether a signal or ``platoon stop`` ends the job
    saved_checkpoints: int = 0
    phases: Mapping[int, PhaseTimes] = MappingProxyType({})  # by rank; empty in another terminal
    failing: Collection[int] = ()  # workers whose script has raised, though their processes may still run
    reported_in: Mapping[str, int] = {}  # the epoch in which each value was reported

    def to_message(self) -> msg.Seen:
        """Return a message for observers of the job, without the failures."""
        return msg.Seen(
            workers=[
                msg.SeenWorker(
                    rank=each.rank,
                    phase=each.phase,
                    launched=each.launched,
                    device=each.device,
                    progress=list(self.progress[each.rank]),
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
        """Undo `to_message`; raises TypeError if the sender is of another version, with other progress rows."""
        # An interruption is recognized by the reason, since the message does not say it.
        interrupted = seen.stop.startswith("SIG") or seen.stop == STOPPED_FROM_OUTSIDE
        return cls(
            [Participant(each.rank, each.launched, Phase(each.phase), device=each.device) for each in seen.workers],
            {each.rank: Progress(*each.progress) for each in seen.workers},  # type: ignore[arg-type]
            seen.reported,
            seen.stop or None,
            seen.seconds,
            seen.missed_checkpoints,
            interrupted=interrupted,
            reported_in=seen.reported_in,
        )


class Reported(NamedTuple):
    """Values that a worker has just reported, and how far the job is.

    Attributes
    ----------
    values : mapping
    spent : Spent
        How much of its budget the job has spent.
    syncs : float
        Mean number of synchronizations of a launched worker.
    rule : str
        The rule with its arguments, or only its name if they are unknown; empty while no parameters are shared.
    """

    values: Mapping[str, float | str]
    spent: Spent
    syncs: float
    rule: str


class Result(NamedTuple):
    """How a job ended.

    Attributes
    ----------
    status : int
        The worst exit status of all workers; 128 + n if signal n ended the job.
    seconds : float
        From the start of the controller to the end of the last worker.
    stopped_by : str
        What ended the job: the reason of the vote to stop, the signal, the first failure if no worker ended well, or
        "end of script", with the epoch if that is not the last one.
    reported : mapping
        The last value of each name that workers reported.
    exits : list of Exit
        In the order in which the processes ended, without those that were restarted.
    interrupted : bool
        Whether a signal to the controller ended the job.
    restarts : int
        Number of restarts; a restart of all workers counts as one.
    again : bool
        Whether all workers are to be restarted, since a lost one cannot be restarted alone.
    shared_nothing : tuple of int
        The workers, of several, that ended well and have neither synchronized with the center nor made a collective
        call.
    checkpoints : Tally or None
        The outcome of the checkpoints, if the job had any. A job whose last one is missing is no success.
    failed : Exit or None
        The worker that failed first, even if others went on to their end.
    lost_leader : str
        What was not done because rank 0 failed; empty if nothing.
    joined : int
        How many workers have joined the running job.
    """

    status: int
    seconds: float
    stopped_by: str
    reported: Mapping[str, float | str]
    exits: list[Exit]
    interrupted: bool = False
    restarts: int = 0
    again: bool = False
    shared_nothing: tuple[int, ...] = ()
    checkpoints: Tally | None = None
    failed: Exit | None = None
    lost_leader: str = ""
    joined: int = 0

    @property
    def first_failure(self) -> str:
        """The worker that failed first, and why, in one line; empty if none failed."""
        return "" if self.failed is None else f"worker {self.failed.rank}: {self.failed.cause}"

    def with_failures_allowed(self) -> Result:
        """Return a success if some worker ended well and the job was not interrupted; otherwise this result."""
        ended_well = any(ended.status == 0 for ended in self.exits)
        unsaved = self.checkpoints is not None and self.checkpoints.unsaved
        return self._replace(status=UNSAVED if unsaved else 0) if ended_well and not self.interrupted else self


def first_failure(exits: Sequence[Exit]) -> Exit | None:
    """Return the first failure, preferring one that is not due to the loss of another worker; None if none failed."""
    failed = [ended for ended in exits if ended.status]
    follows = {ended.rank: ended.failure is not None and ended.failure.follows for ended in failed}
    return min(failed, key=lambda ended: (follows[ended.rank], ended.at), default=None)


def stop_cause(reason: str | None, failed: Exit | None, some_ended_well: bool, how_far: str = "") -> str:
    """Return in one line what ended a job: a reason to stop, the end of the script, or a failure.

    Parameters
    ----------
    reason : str or None
    failed : Exit or None
    some_ended_well : bool
    how_far : str
        As `epochs_reached` returns it.
    """
    if reason:
        return reason
    if failed is None or some_ended_well:
        return f"end of script{how_far}"
    return f"worker {failed.rank}: {failed.cause}"


def epochs_reached(progress: Iterable[Progress]) -> str:
    """Return the epoch reached if workers ended before the last one, as with EarlyStopping; otherwise empty."""
    far = max(progress, key=lambda each: each.epoch, default=None)
    if far is None or not 0 < far.epoch < far.last_epoch:
        return ""
    return f", after epoch {far.epoch} of {far.last_epoch}{f' ({far.limit})' if far.limit else ''}"
