"""The restart policy: a worker that failed is started again alone, or all workers are, or nobody is."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Restart", "RestartPolicy", "Verdict", "WorkerFailed"]


class WorkerFailed(NamedTuple):
    """A worker ended badly.

    Attributes
    ----------
    rank : int
    adopted : bool
        Whether it had joined by itself: nobody knows how to start it.
    stopping : bool
        Whether the job stops anyway.
    bound : bool
        Whether the workers need each other, so that this one cannot come again alone.
    centers_dropped : int
        Number of centers that the workers have released: those before hold nothing to go on from.
    host_lost, some_host_lost : bool
        Whether its host is lost, or any: then not all workers can be started again.
    """

    rank: int
    adopted: bool
    stopping: bool
    bound: bool
    centers_dropped: int
    host_lost: bool = False
    some_host_lost: bool = False


class Restart(enum.Enum):
    """Whom to start again."""

    NONE = enum.auto()
    THIS_ONE = enum.auto()
    ALL = enum.auto()  # so the others have to be stopped now


class Verdict(NamedTuple):
    """Whom to start again, and a warning for the log; it is empty if there is nothing to say."""

    restart: Restart
    warning: str = ""


class _AllAgain(enum.Enum):
    """Whether the job is to be run once more."""

    NO = enum.auto()
    IF_ALL_FAIL = enum.auto()
    YES = enum.auto()


class RestartPolicy:
    """Decides for one run of a job which workers are started again.

    Workers that need each other are started again all together: at once if there are checkpoints to go on from,
    otherwise only if all of them fail.

    Parameters
    ----------
    max_restarts : int
        Bound on the restarts of this run. A restart of all workers counts as one.
    has_checkpoints : bool
        Whether all workers can go on from a checkpoint.

    Attributes
    ----------
    restarts : int
        Number of workers started again alone.
    """

    def __init__(self, max_restarts: int, has_checkpoints: bool) -> None:
        self.restarts = 0
        self._max_restarts = max_restarts
        self._has_checkpoints = has_checkpoints
        self._all = _AllAgain.NO
        self._warned_of_lost_host = False

    def worker_failed(self, event: WorkerFailed) -> Verdict:
        """Decide whom to start again now."""
        if event.adopted or event.stopping or self.restarts >= self._max_restarts:
            return Verdict(Restart.NONE)
        if event.host_lost or (event.bound and event.some_host_lost):
            return self._without_lost_host(event)
        rank = event.rank
        if event.bound and self._has_checkpoints:
            self._all = _AllAgain.YES
            text = f"rank {rank} cannot come again alone: all workers are started again, from the checkpoint"
            return Verdict(Restart.ALL, text)
        if event.bound:
            self._all = _AllAgain.IF_ALL_FAIL
            text = (
                f"rank {rank} cannot come again alone, since the workers need each other: all are started again if all "
                "fail; with --checkpoint-every they would at once, and go on from there"
            )
            return Verdict(Restart.NONE, text)
        if event.centers_dropped:
            text = f"rank {rank} is not started again: the others have released the parameters"
            return Verdict(Restart.NONE, text)
        self.restarts += 1
        text = f"rank {rank} is started again, restart {self.restarts} of {self._max_restarts}"
        return Verdict(Restart.THIS_ONE, text)

    def _without_lost_host(self, event: WorkerFailed) -> Verdict:
        """Start nobody again, which is no restart; for workers that need each other warn of it, once."""
        if not event.bound or self._warned_of_lost_host:
            return Verdict(Restart.NONE)
        self._warned_of_lost_host = True
        text = (
            "the workers need each other, so none is started again without the host that is lost: start the job again "
            "on the hosts that are left, with --resume if it has checkpoints"
        )
        return Verdict(Restart.NONE, text)

    def all_again(self, interrupted: bool, some_ended_well: bool, checkpoint_unfinished: bool) -> bool:
        """Decide, at the end of the run, whether the job is to be run once more.

        Parameters
        ----------
        interrupted : bool
            Whether a signal to the controller ended the job.
        some_ended_well : bool
            Whether a worker ended without a failure.
        checkpoint_unfinished : bool
            Whether a checkpoint is still being written. Another run would write to the same file.
        """
        if interrupted or checkpoint_unfinished:
            return False
        return self._all is _AllAgain.YES or (self._all is _AllAgain.IF_ALL_FAIL and not some_ended_well)
