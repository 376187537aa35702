"""Votes to stop that hold for a part of the job, such as one training of several; seen without asking anybody."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import votes_suffice
from platoon_base.shm.job_state import ControlWords

__all__ = ["Ballot"]


class Ballot:
    """The ballots of a job, which lie in its control words, as one worker sees them.

    Ballots have numbers, which all workers count alike: the first training may be ballot 1, the next one ballot 2.
    A vote says in which ballot it was cast, so nobody has to clear it away, and workers may be in different ballots.

    Parameters
    ----------
    words : ControlWords
    rank : int
        Of this worker.

    Attributes
    ----------
    number : int
        Of the open ballot; 0 before the first.
    """

    def __init__(self, words: ControlWords, rank: int) -> None:
        self.number = 0
        self._votes = words.ballots
        self._closed = False
        self._rank = rank
        self._seen = b""  # the votes at the last look, and who had cast them
        self._voters: frozenset[int] = frozenset()

    def open(self, number: int) -> None:
        """Enter ballot ``number``, in which this worker has not voted yet.

        Parameters
        ----------
        number : int
            At least 1, and another one each time: those still in an earlier ballot go on seeing this worker's vote.
        """
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"got ballot number {number!r}: ballots are counted from 1 on")
        self._require_part()
        if self._votes[self._rank] == number:
            self._votes[self._rank] = 0
        self.number = int(number)
        self._seen = b""

    def cast(self) -> None:
        """Vote to stop in the open ballot; a second time changes nothing."""
        self._require_open()
        self._require_part()
        self._votes[self._rank] = self.number

    def voters(self) -> set[int]:
        """Return the ranks that have voted in the open ballot, those of workers that are gone since included.

        It costs less than a microsecond unless votes were cast since the last look.
        """
        self._require_open()
        votes = self._votes.tobytes()
        if votes != self._seen:
            cast = np.frombuffer(votes, dtype=self._votes.dtype) == self.number
            self._seen, self._voters = votes, frozenset(np.flatnonzero(cast).tolist())
        return set(self._voters)

    def passed(self, policy: str, members: Collection[int]) -> bool:
        """Tell whether the votes of ``members``, the ranks that take part, suffice; see `votes_suffice`.

        Parameters
        ----------
        policy : {"any", "all", "leader"}
        members : collection of int
        """
        return votes_suffice(policy, self.voters(), members)

    def close(self) -> None:
        """Leave the memory: the votes keep their last values."""
        self._closed = True
        self._votes = self._votes.copy()

    def _require_part(self) -> None:
        if self._closed:
            raise ConfigurationError("this worker has left the job: it cannot vote after close()")

    def _require_open(self) -> None:
        if not self.number:
            raise ConfigurationError("no ballot is open: call open(number) first")
