"""The controller's news of a job: a snapshot, a report, the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.processes import Exit
from platoon_base.coordination import messages as msg
from platoon_base.coordination.budget import Spent
from platoon_base.coordination.phase import Phase
from platoon_base.coordination.roster import Participant
from platoon_base.shm.job_state import Progress

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

_SENT = 500  # characters of a value
STOPPED_FROM_OUTSIDE = "platoon stop"  # the reason
UNSAVED = 2  # the status of a job whose workers have ended well, and whose end is in no checkpoint


class Snapshot(NamedTuple):
    """The state of a job at one moment, for a display."""

    participants: list[Participant]
    progress: dict[int, Progress]
    reported: Mapping[str, float | str]
    stop_reason: str | None
    seconds: float
    missed_checkpoints: int = 0
    failed: Sequence[Exit] = ()  # so far, also those that were started again
    interrupted: bool = False  # whether a signal or ``platoon stop`` ends the job
    failing: Collection[int] = ()  # workers that an exception ends, whose processes may still be there

    def to_message(self) -> msg.Seen:
        """Return it for somebody who looks at the job from outside, without the failures."""
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
        )

    @classmethod
    def of_message(cls, seen: msg.Seen) -> Snapshot:
        """Return what `to_message` was made of; raises TypeError for the progress of another version."""
        # The signals' reasons; a failure is not told apart in another process.
        interrupted = seen.stop.startswith("SIG") or seen.stop == STOPPED_FROM_OUTSIDE
        return cls(
            [Participant(each.rank, each.launched, Phase(each.phase), device=each.device) for each in seen.workers],
            {each.rank: Progress(*each.progress) for each in seen.workers},  # type: ignore[arg-type]
            seen.reported,
            seen.stop or None,
            seen.seconds,
            seen.missed_checkpoints,
            interrupted=interrupted,
        )


class Reported(NamedTuple):
    """Values that a worker has just reported.

    Attributes
    ----------
    values : mapping
    spent : Spent
        How far the job was.
    syncs : float
        Synchronizations of a launched worker, on average.
    rule : str
        The rule with its arguments, or its name if it does not tell them; empty while no parameters are shared.
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
        What ended the job: the reason of the common stop, the signal, the first failure if no worker ended well, or
        "end of script", with the epoch if that is not the last one.
    reported : mapping
        The last value of everything that workers reported.
    exits : list of Exit
        In the order in which the processes ended, without those that were started again.
    interrupted : bool
        Whether a signal to the controller ended the job.
    restarts : int
        How often workers are started again; a restart of all counts as one.
    again : bool
        Whether all workers are to be started again, since one that was lost cannot come again alone.
    shared_nothing : tuple of int
        Of several workers those that ended well, and have neither exchanged parameters with the center nor combined
        anything with others.
    checkpoints : Tally or None
        The outcome of the checkpoints, if there were to be any. A job whose end is not saved is no success.
    failed : Exit or None
        The worker that failed first, though others may have gone on to the end.
    lost_leader : str
        What did not happen because rank 0 has failed; empty if nothing.
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
        """The worker that failed first and why, in a line; empty if none failed."""
        return "" if self.failed is None else f"worker {self.failed.rank}: {self.failed.cause}"

    def with_failures_allowed(self) -> Result:
        """Return a success if one worker ended well and nobody stopped the job; otherwise this result as it is."""
        ended_well = any(ended.status == 0 for ended in self.exits)
        unsaved = self.checkpoints is not None and self.checkpoints.unsaved
        return self._replace(status=UNSAVED if unsaved else 0) if ended_well and not self.interrupted else self


def first_failure(exits: Sequence[Exit]) -> Exit | None:
    """Return the worker that failed first, before those that failed because another was gone; None if none failed."""
    failed = [ended for ended in exits if ended.status]
    follows = {ended.rank: ended.failure is not None and ended.failure.follows for ended in failed}
    return min(failed, key=lambda ended: (follows[ended.rank], ended.at), default=None)


def stop_cause(reason: str | None, failed: Exit | None, some_ended_well: bool, how_far: str = "") -> str:
    """Say in a line what ended a job: a reason to stop, the end of the script, or a failure.

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
    """Say how far workers came that ended before the last epoch, as by EarlyStopping; empty if they did not."""
    far = max(progress, key=lambda each: each.epoch, default=None)
    if far is None or not 0 < far.epoch < far.last_epoch:
        return ""
    return f", after epoch {far.epoch} of {far.last_epoch}{f' ({far.limit})' if far.limit else ''}"
