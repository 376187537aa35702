"""What a worker can tell of the others without asking anybody: who is there, who is gone, and who waits elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from platoon_base.shm.calls import Call
from platoon_base.shm.job_state import ControlWords

__all__ = ["JobPeers"]

_CAUSE_S = 1.5  # the controller learns how a process ended when it has, which is after it said goodbye
_STUCK_S = 1.0


class JobPeers:
    """The other workers of a job, as the kernel's locks and the control words show them.

    Parameters
    ----------
    words : ControlWords
    alive : callable
        ``alive(rank)`` tells whether that worker still holds its lock.
    """

    def __init__(self, words: ControlWords, alive: Callable[[int], bool]) -> None:
        self._words = words
        self._alive = alive
        self._waiting: dict[int, tuple[int, float]] = {}

    def why_absent(self, ranks: Sequence[int]) -> str:
        """See `platoon_base.collectives.base.Peers`."""
        for rank in ranks:
            if self._words.row(rank)["left"] or not self._alive(rank):  # it says goodbye before it lets go
                return self._how_it_went(rank)
            if self._is_stuck(rank):
                return (
                    f"rank {rank} waits in {self._words.read_text(rank, 'waiting_in')!r} instead, for this rank too: "
                    "all ranks must make the same calls in the same order"
                )
        return ""

    def gone(self, rank: int) -> bool:
        """Tell whether this worker takes part no more; one that has yet to join is not gone."""
        ended = self._words.row(rank)["left"] or self._words.row(rank)["ending"]
        return bool(ended) and not self._alive(rank)

    def died(self, rank: int) -> bool:
        """Tell whether this worker is gone without having said so."""
        return not self._alive(rank) and not self._words.row(rank)["left"]

    def latest_call(self, rank: int) -> Call:
        """Return the latest collective call on devices that this worker has begun."""
        return Call.of(int(self._words.collectives(rank)[0]))

    def _is_stuck(self, rank: int) -> bool:
        """Tell whether a worker has been in one and the same wait of the control plane for long; it is odd inside."""
        count = int(self._words.row(rank)["waits"])
        before = self._waiting.get(rank)
        if count % 2 == 0:
            self._waiting.pop(rank, None)
        elif before is None or before[0] != count:
            self._waiting[rank] = count, time.monotonic()
        else:
            return time.monotonic() - before[1] > _STUCK_S
        return False

    def _how_it_went(self, rank: int) -> str:
        deadline = time.monotonic() + _CAUSE_S
        while not (cause := self._words.read_text(rank, "ending")) and time.monotonic() < deadline:
            time.sleep(0.01)
        verb = "has left the job" if self._words.row(rank)["left"] else "is lost"
        return f"rank {rank} {verb}{f' ({cause})' if cause else ''}"
