"""The vote on the end of the job."""

from __future__ import annotations

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, StopJob
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import require_policy, votes_suffice

__all__ = ["StopPoll"]

_MAX_REASON = 256  # characters: the answer to every collective call carries it


class StopPoll:
    """Collects votes until they suffice by the policy of the latest one.

    Parameters
    ----------
    story : Story
        Where votes and the decision are recorded.

    Attributes
    ----------
    reason : str or None
        The reason of the decision; None while the job goes on.
    """

    def __init__(self, story: Story) -> None:
        self._story = story
        self.reason: str | None = None
        self._voters: set[int] = set()
        self._latest: msg.StopVote | None = None

    def cast(self, rank: int, vote: msg.StopVote) -> msg.Failure | None:
        """Take a vote in, or refuse one of an unknown policy."""
        try:
            require_policy(vote.policy)
        except ConfigurationError as exc:
            return msg.Failure(kind="ConfigurationError", message=str(exc))
        if rank not in self._voters and self.reason is None:
            self._story.add("rank", [rank], "", f"votes to stop by policy {vote.policy}", vote.reason)
        self._voters.add(rank)
        self._latest = vote
        return None

    def decide(self, reason: str) -> list[Action]:
        """Stop the job without a vote, unless it stops already."""
        if self.reason is not None:
            return []
        self.reason = reason[:_MAX_REASON]
        self._story.add("job", [], "", "stops", self.reason)
        return [StopJob(self.reason)]

    def depart(self, rank: int) -> None:
        """Forget the vote of a rank that is gone."""
        self._voters.discard(rank)

    def count(self, awaited: frozenset[int]) -> list[Action]:
        """Stop the job, once, if the votes suffice among the ranks that collective calls wait for."""
        if self._latest is None or self.reason is not None:
            return []
        # The vote of one that came later counts too, though nobody waits for it.
        if not votes_suffice(self._latest.policy, self._voters, awaited | self._voters):
            return []
        return self.decide(self._latest.reason)
