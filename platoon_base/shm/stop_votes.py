"""Votes to stop a part of a job, such as one training of several. Workers read them from shared memory."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import votes_suffice
from platoon_base.shm.job_state import JobState

__all__ = ["StopVotes"]


class StopVotes:
    """The votes of all workers of a job, as one worker sees them.

    Workers vote in rounds. All workers number the rounds alike: the first training may be round 1, the next one round
    2. A vote is the number of its round, so votes need not be cleared, and workers may be in different rounds.

    Parameters
    ----------
    job_state : JobState
    rank : int
        Of this worker.

    Attributes
    ----------
    number : int
        Of the open round; 0 before the first.
    """

    def __init__(self, job_state: JobState, rank: int) -> None:
        self.number = 0
        self._votes = job_state.stop_votes
        self._closed = False
        self._rank = rank
        self._seen = b""  # the votes at the last poll, and the ranks that had cast them
        self._voters: frozenset[int] = frozenset()

    def open(self, number: int) -> None:
        """Enter round ``number``, in which this worker has not voted yet.

        Parameters
        ----------
        number : int
            At least 1, and another one each time: workers in an earlier round still see this worker's earlier vote.
        """
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"got round {number!r}: rounds of votes are counted from 1 on")
        self._require_part()
        if self._votes[self._rank] == number:
            self._votes[self._rank] = 0
        self.number = int(number)
        self._seen = b""

    def cast(self) -> None:
        """Vote to stop in the open round; a second vote changes nothing."""
        self._require_open()
        self._require_part()
        self._votes[self._rank] = self.number

    def voters(self) -> set[int]:
        """Return the ranks that have voted in the open round, with those of workers that have left since.

        It costs less than a microsecond unless votes were cast since the last poll.
        """
        self._require_open()
        votes = self._votes.tobytes()
        if votes != self._seen:
            cast = np.frombuffer(votes, dtype=self._votes.dtype) == self.number
            self._seen, self._voters = votes, frozenset(np.flatnonzero(cast).tolist())
        return set(self._voters)

    def passed(self, policy: str, participants: Collection[int]) -> bool:
        """Return whether the votes of ``participants``, the ranks that take part, suffice; see `votes_suffice`.

        Parameters
        ----------
        policy : {"any", "all", "leader"}
        participants : collection of int
        """
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
