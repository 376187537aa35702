"""Points at which the main loops of all workers wait for each other and vote on stopping."""

from __future__ import annotations

import enum
from typing import NamedTuple

from platoon_base import Worker
from platoon_base.errors import ConfigurationError

__all__ = ["END", "SyncPoint", "SyncPoints", "Vote"]

END = "the end of training"


class Vote(enum.IntEnum):
    """A worker's vote on stopping; `END` stops all workers, whatever the policy."""

    NO = 0
    YES = 1
    END = 2


class SyncPoint(NamedTuple):
    """The result of a collective wait: its ranks, those that voted to stop, and any `Vote.END`."""

    ranks: list[int]
    voters: set[int]
    ends: bool


class SyncPoints:
    """The collective waits of one training; a main loop that ends informs the others at `END`."""

    def __init__(self, worker: Worker, name: str, stops_together: bool, timeout_s: float) -> None:
        self.ranks: list[int] = []
        self._worker = worker
        self._name = name
        self._stops_together = stops_together
        self._timeout_s = timeout_s

    def attend(self, point: str, vote: Vote = Vote.NO) -> SyncPoint | None:
        """Wait for all main loops at a named point; None if this main loop has to end now."""
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
            # Wait again: the remaining main loops either end too, or continue without those that have ended.


def _at_different_points(points: dict[int, str]) -> str:
    told = "; ".join(f"worker {rank} is at {point}" for rank, point in sorted(points.items()))
    return (
        f"the main loops of this job are at different places: {told}. Give all workers the same extensions with the "
        'same triggers, and as many batches in an epoch: shard_stream(stream, uneven="drop")'
    )
