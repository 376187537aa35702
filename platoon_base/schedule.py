"""When to synchronize and when to stop: small state machines. No clock, no I/O."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = [
    "STOP_POLICIES",
    "Limits",
    "Patience",
    "part_is_over",
    "require_period",
    "require_policy",
    "votes_suffice",
]

STOP_POLICIES = ("any", "all", "leader")


def part_is_over(part: float, count: int, n: int) -> bool:
    """Return whether ``count`` steps, at least one, are that part of a period of ``n`` or more."""
    return count >= max(1, int(n * part))


def require_period(n: Any) -> int:
    """Return a period; raise `ConfigurationError` unless it is a whole number, at least 1."""
    whole = isinstance(n, numbers.Real) and not isinstance(n, bool) and n % 1 == 0
    if not whole or n < 1:
        raise ConfigurationError(f"got a period of {n!r}: it counts updates and must be a whole number >= 1")
    period: int = n
    return period


@dataclass
class Patience:
    """Stop when a metric has not improved by more than ``min_delta`` for ``patience`` reports."""

    patience: int
    min_delta: float = 0.0
    mode: str = "min"
    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigurationError(f"got patience={self.patience!r}: it counts reports and must be at least 1")
        if not self.min_delta >= 0:
            raise ConfigurationError(f"got min_delta={self.min_delta!r}: it must be at least 0")
        if self.mode not in ("min", "max"):
            raise ConfigurationError(f"got mode={self.mode!r}: it must be 'min' or 'max'")

    def improved(self, value: float) -> bool:
        """Add a reported value and return whether it is the best so far; NaN never is."""
        sign = 1.0 if self.mode == "min" else -1.0
        better = not math.isnan(value) and (math.isnan(self.best) or sign * value < sign * self.best - self.min_delta)
        if better:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return better

    @property
    def exhausted(self) -> bool:
        return self.waited >= self.patience


@dataclass(frozen=True)
class Limits:
    epochs: int | None = None
    batches: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batches", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"got {name}={value!r}: a limit must be greater than 0, or None for no limit")

    def reached(self, epochs: int = 0, batches: int = 0, seconds: float = 0.0) -> str | None:
        """Return the first bound that is reached, such as ``"epochs >= 10"``, or None."""
        for name, count in (("epochs", epochs), ("batches", batches), ("seconds", seconds)):
            limit = getattr(self, name)
            if limit is not None and count >= limit:
                return f"{name} >= {limit}"
        return None


def require_policy(policy: Any) -> None:
    if policy not in STOP_POLICIES:
        raise ConfigurationError(f"got policy={policy!r}: it must be one of {', '.join(STOP_POLICIES)}")


def votes_suffice(policy: str, voters: Collection[int], participants: Collection[int]) -> bool:
    """Return whether votes to stop decide for all participants; others' votes do not count."""
    # "leader": the vote of the lowest rank present decides.
    require_policy(policy)
    present = set(participants)
    votes = present.intersection(voters)
    if policy == "any":
        return bool(votes)
    if policy == "all":
        return bool(present) and votes == present
    return bool(present) and min(present) in votes
