"""The budget of a run: when to ask its workers to stop, and when to end them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import NamedTuple

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import Limits

__all__ = ["Budget", "BudgetWatch", "Order", "Spent"]


class Budget(NamedTuple):
    """The most that a run may spend.

    Attributes
    ----------
    limits : Limits
        ``batches`` each worker may process, on average, and ``seconds`` it may train. Then the job stops, as by
        `Worker.request_stop`.
    overtime_s : float
        Seconds from then on until workers that still run are ended by signals.
    run_s : float
        Seconds of the whole run after which workers are ended by signals, with the start and everything.
    verdict : callable or None
        Returns why the job is to stop before its limits; empty while it may go on. Asked often.
    """

    limits: Limits
    overtime_s: float = 30.0
    run_s: float = math.inf
    verdict: Callable[[], str] | None = None


class Spent(NamedTuple):
    """The amounts that a run has spent so far.

    Attributes
    ----------
    steps : float
        Mini-batches of a launched worker, on average.
    training_s, run_s : float
        Seconds since the first mini-batch of any worker (0 before), and since the start of the job.
    """

    steps: float
    training_s: float
    run_s: float


class Order(enum.Enum):
    """An order about a run."""

    GO_ON = enum.auto()
    STOP = enum.auto()  # ask the workers to stop
    END = enum.auto()  # end them by signals


class BudgetWatch:
    """Compares a run with its budget; gives each order once.

    Parameters
    ----------
    budget : Budget

    Attributes
    ----------
    reason : str
        Why the run is to end; empty before.

    Raises
    ------
    ConfigurationError
        If a number of seconds is negative or no number.
    """

    def __init__(self, budget: Budget) -> None:
        for name in ("overtime_s", "run_s"):
            if not getattr(budget, name) >= 0:
                raise ConfigurationError(
                    f"got {name}={getattr(budget, name)!r}: it is a number of seconds and must be at least 0"
                )
        self._budget = budget
        self._stopped_at: float | None = None
        self._ended = False
        self.reason = ""

    def poll(self, spent: Spent) -> Order:
        """Return what is to be done now."""
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
