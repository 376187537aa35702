"""When a job stops: by the vote of its workers, or because its budget is spent."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import NamedTuple

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, StopJob
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import Limits, require_policy, votes_suffice

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


class Budget(NamedTuple):
    """The most that a run may spend; times are in seconds.

    At ``limits`` the workers are asked to stop, and ``overtime_s`` later those that still run get
    signals; so do all after ``run_s``. ``verdict`` returns a reason to stop earlier, or an empty
    text.
    """

    limits: Limits
    overtime_s: float = 30.0
    run_s: float = math.inf
    verdict: Callable[[], str] | None = None


class Spent(NamedTuple):
    """The costs so far; ``training_s`` is the time since the first mini-batch of any worker."""

    steps: float  # Mini-batches per launched worker, on average.
    training_s: float
    run_s: float


class Order(enum.Enum):
    GO_ON = enum.auto()
    STOP = enum.auto()  # The workers are asked to stop.
    END = enum.auto()  # They get signals.


class BudgetWatch:
    """Compares a run with its budget; returns each order once. ``reason`` explains the end."""

    def __init__(self, budget: Budget) -> None:
        for name in ("overtime_s", "run_s"):
            if not getattr(budget, name) >= 0:
                raise ConfigurationError(
                    f"got {name}={getattr(budget, name)!r}: it must be a number of seconds, 0 or more"
                )
        self._budget = budget
        self._stopped_at: float | None = None
        self._ended = False
        self.reason = ""

    def poll(self, spent: Spent) -> Order:
        if self._ended:
            return Order.GO_ON
        reached = self._budget.limits.reached(batches=int(spent.steps), seconds=spent.training_s)
        if reached is None and self._budget.verdict is not None:
            reached = self._budget.verdict() or None
        overdue = self._stopped_at is not None and spent.run_s >= self._stopped_at + self._budget.overtime_s
        if overdue or spent.run_s >= self._budget.run_s:
            self.reason = self.reason or reached or f"no end within {self._budget.run_s:g} s"
            self._ended = True
            return Order.END
        if reached is None or self._stopped_at is not None:
            return Order.GO_ON
        self._stopped_at = spent.run_s
        self.reason = reached
        return Order.STOP
