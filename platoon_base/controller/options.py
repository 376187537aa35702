"""Options of a controller: callbacks, the budget, restarts and how the job ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from platoon_base.channels.server import UserHandler
from platoon_base.controller.outcome import Reported, Snapshot
from platoon_base.coordination.budget import Budget

__all__ = ["ControllerOptions"]


@dataclass(frozen=True)
class ControllerOptions:
    """Options of a controller; see `JobOptions` for the fields."""

    grace_s: float
    handler: UserHandler | None = None
    observer: Callable[[Snapshot], None] | None = None
    observe_every_s: float = 0.5
    on_report: Callable[[Reported], None] | None = None
    budget: Budget | None = None
    max_restarts: int = 0
    fail_fast: str = "never"
