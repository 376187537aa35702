"""Points at which the main loops of all workers wait for one another, and vote on stopping."""

from __future__ import annotations

import enum
from typing import NamedTuple

from platoon_base import Worker
from platoon_base.errors import ConfigurationError

__all__ = ["END", "SyncPoint", "SyncPoints", "Vote"]

END = "the end of training"


class Vote(enum.IntEnum):
    """A worker's vote on stopping: `END` leaves the others no choice."""

    NO = 0
    YES = 1
    END = 2


class SyncPoint(NamedTuple):
    """The workers that met, those that voted to stop, and whether one of them must stop.

    Attributes
    ----------
    ranks : list of int
    voters : set of int
    ends : bool
    """

    ranks: list[int]
    voters: set[int]
    ends: bool


class SyncPoints:
    """The meetings of one training: every main loop comes to as many of them, and tells which point it has reached.

    A main loop that ends waits at the end for the others. If they come to another meeting, they learn of it there.

    Parameters
    ----------
    worker : Worker
    name : str
        Name of the training, the same on all workers.
    stops_together : bool
        Whether all main loops end if one of them ends; otherwise the others go on without it.
    timeout_s : float
        Bound on each wait for the other workers.

    Attributes
    ----------
    ranks : list of int
        The ranks at the latest meeting.
    """

    def __init__(self, worker: Worker, name: str, stops_together: bool, timeout_s: float) -> None:
        self.ranks: list[int] = []
        self._worker = worker
        self._name = name
        self._stops_together = stops_together
        self._timeout_s = timeout_s

    def attend(self, point: str, vote: Vote = Vote.NO) -> SyncPoint | None:
        """Wait until the main loops of all workers have come to a point.

        Parameters
        ----------
        point : str
            Such as "the first batch".
        vote : Vote

        Returns
        -------
        SyncPoint or None
            None if this main loop is to end now: because another one has ended, or because the others go on without it.

        Raises
        ------
        ConfigurationError
            If other main loops have come to another point.
        CollectiveTimeoutError
            If some did not come in time; the message names them.
        """
        rank = self._worker.global_rank
        while True:
            told = self._worker.gather(
                [rank, point, int(vote)], name=f"meeting of {self._name}", timeout_s=self._timeout_s
            )
            points = {rank: point for rank, point, _ in told}
            self.ranks = list(points)
            if len(set(points.values())) == 1:
                return SyncPoint(self.ranks, {r for r, _, v in told if v}, any(v == Vote.END for _, _, v in told))
            if END not in points.values():
                raise ConfigurationError(_at_different_points(points))
            ends_now = point != END if self._stops_together else point == END
            if ends_now:
                return None
            # The others come to the end too, or those at the end leave.


def _at_different_points(points: dict[int, str]) -> str:
    told = "; ".join(f"worker {rank} is at {point}" for rank, point in sorted(points.items()))
    return (
        f"the main loops of this job are at different places: {told}. Give all workers the same extensions with the "
        'same triggers, and as many batches in an epoch: shard_stream(stream, uneven="drop")'
    )
