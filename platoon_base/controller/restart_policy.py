"""The restart policy: after a failure restart the failed worker, all workers, or none."""

from __future__ import annotations

import enum
from typing import NamedTuple


class WorkerFailed(NamedTuple):
    rank: int
    adopted: bool  # It joined by itself: its command is unknown.
    stopping: bool  # Whether the job is ending already.
    bound: bool  # The workers need each other: this one cannot be restarted alone.
    centers_dropped: int  # Number of released centers: a restarted worker cannot continue from these.
    host_lost: bool = False  # With a lost host, not all workers can be restarted.
    some_host_lost: bool = False


class Restart(enum.Enum):
    NONE = enum.auto()
    THIS_ONE = enum.auto()
    ALL = enum.auto()  # The others must be stopped first.


class Verdict(NamedTuple):
    """Which workers to restart, and a warning for the log, or ''."""

    restart: Restart
    warning: str = ""


class _AllAgain(enum.Enum):
    NO = enum.auto()
    IF_ALL_FAIL = enum.auto()
    YES = enum.auto()


class RestartPolicy:
    """Decides, for one run of a job, which workers are restarted, up to ``max_restarts`` times.

    Workers that need each other are restarted all together: immediately if there are checkpoints,
    otherwise only if all of them fail.
    """

    def __init__(self, max_restarts: int, has_checkpoints: bool) -> None:
        self.restarts = 0  # Restarts of single workers.
        self._max_restarts = max_restarts
        self._has_checkpoints = has_checkpoints
        self._all = _AllAgain.NO
        self._warned_of_lost_host = False

    def worker_failed(self, event: WorkerFailed) -> Verdict:
        if event.adopted or event.stopping or self.restarts >= self._max_restarts:
            return Verdict(Restart.NONE)
        if event.host_lost or (event.bound and event.some_host_lost):
            return self._without_lost_host(event)
        rank = event.rank
        if event.bound and self._has_checkpoints:
            self._all = _AllAgain.YES
            text = f"cannot restart rank {rank} alone: restarting all workers from the checkpoint"
            return Verdict(Restart.ALL, text)
        if event.bound:
            self._all = _AllAgain.IF_ALL_FAIL
            text = (
                f"cannot restart rank {rank} alone, since the workers depend on each other. All "
                "of them restart only if all fail; with --checkpoint-every they would restart "
                "immediately, from the last checkpoint"
            )
            return Verdict(Restart.NONE, text)
        if event.centers_dropped:
            text = f"not restarting rank {rank}: the others have released the parameters"
            return Verdict(Restart.NONE, text)
        self.restarts += 1
        text = f"restarting rank {rank}, restart {self.restarts} of {self._max_restarts}"
        return Verdict(Restart.THIS_ONE, text)

    def _without_lost_host(self, event: WorkerFailed) -> Verdict:
        """Restart none; warn once about it if the workers need each other."""
        if not event.bound or self._warned_of_lost_host:
            return Verdict(Restart.NONE)
        self._warned_of_lost_host = True
        text = (
            "the workers depend on each other, so none can restart without the lost host: start "
            "the job again on the remaining hosts, with --resume if it has checkpoints"
        )
        return Verdict(Restart.NONE, text)

    def all_again(self, interrupted: bool, some_ended_well: bool, checkpoint_unfinished: bool) -> bool:
        """Decide, at the end of the run, whether to run the job again with all workers."""
        # Another run would write to the file of an unfinished checkpoint.
        if interrupted or checkpoint_unfinished:
            return False
        return self._all is _AllAgain.YES or (self._all is _AllAgain.IF_ALL_FAIL and not some_ended_well)
