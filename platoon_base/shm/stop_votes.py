"""Votes to stop a part of a job, such as one of several trainings, in shared memory."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import votes_suffice
from platoon_base.shm.job_state import JobState

__all__ = ["StopVotes"]


class StopVotes:
    """Votes of all workers of a job, in rounds that all workers number alike."""

    def __init__(self, job_state: JobState, rank: int) -> None:
        # A vote is the number of its round: votes need no clearing, and rounds may overlap.
        self.number = 0
        self._votes = job_state.stop_votes
        self._closed = False
        self._rank = rank
        self._seen = b""  # Votes at the last poll; `_voters` had cast them.
        self._voters: frozenset[int] = frozenset()

    def open(self, number: int) -> None:
        """Enter round ``number``, at least 1 and new each time; this worker has not voted in it."""
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"got round {number!r}: rounds of votes are counted from 1")
        self._require_part()
        if self._votes[self._rank] == number:
            self._votes[self._rank] = 0
        self.number = int(number)
        self._seen = b""

    def cast(self) -> None:
        """Vote to stop in the open round; idempotent."""
        self._require_open()
        self._require_part()
        self._votes[self._rank] = self.number

    def voters(self) -> set[int]:
        """Return the ranks that voted in the open round, including workers that have left since."""
        self._require_open()
        votes = self._votes.tobytes()
        if votes != self._seen:
            cast = np.frombuffer(votes, dtype=self._votes.dtype) == self.number
            self._seen, self._voters = votes, frozenset(np.flatnonzero(cast).tolist())
        return set(self._voters)

    def passed(self, policy: str, participants: Collection[int]) -> bool:
        """Return whether the votes of ``participants`` suffice; see `votes_suffice`."""
        return votes_suffice(policy, self.voters(), participants)

    def close(self) -> None:
        """Detach from the shared memory; the votes keep their last values."""
        self._closed = True
        self._votes = self._votes.copy()

    def _require_part(self) -> None:
        if self._closed:
            raise ConfigurationError("this worker has left the job: it cannot vote after close()")

    def _require_open(self) -> None:
        if not self.number:
            raise ConfigurationError("no round of votes is open: call open(number) first")
