"""The vote on the end of the job."""

from __future__ import annotations

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, StopJob
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import require_policy, votes_suffice

__all__ = ["StopPoll"]

_MAX_REASON = 256  # Characters; every answer to a collective call has the reason.


class StopPoll:
    """Collects votes until they suffice by the policy of the latest one."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.reason: str | None = None
        self._voters: set[int] = set()
        self._latest: msg.StopVote | None = None

    def cast(self, rank: int, vote: msg.StopVote) -> msg.Failure | None:
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
        if self.reason is not None:
            return []
        self.reason = reason[:_MAX_REASON]
        self._story.add("job", [], "", "stops", self.reason)
        return [StopJob(self.reason)]

    def depart(self, rank: int) -> None:
        self._voters.discard(rank)

    def count(self, awaited: frozenset[int]) -> list[Action]:
        """Stop the job, once, if the votes suffice among the awaited ranks."""
        if self._latest is None or self.reason is not None:
            return []
        # The vote of a late joiner counts too, though calls do not wait for it.
        if not votes_suffice(self._latest.policy, self._voters, awaited | self._voters):
            return []
        return self.decide(self._latest.reason)
