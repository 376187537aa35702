"""The learning rate of N workers: scaling, warm-up and schedules. No clock, no I/O."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from platoon_base.errors import ConfigurationError

SCALINGS = ("linear", "sqrt", "none")


def scale_factor(workers: int, how: str = "linear") -> float:
    """Return the factor of the learning rate for N workers: N, sqrt(N) or 1.

    N workers that keep the batch size of one process take mini-batches N times as large together.
    With SGD and momentum, one such step is about N steps of one process (linear). The square root
    keeps the covariance of a step of SGD, and is the rule for Adam and RMSProp.

    Deviation: Malladi et al. also change beta_1, beta_2 and epsilon with N; they stay unchanged
    here.

    Sources: linear, Goyal et al., arXiv 1706.02677, section 2.1. sqrt, Krizhevsky, arXiv 1404.5997;
    Hoffer et al., arXiv 1705.08741; for Adam and RMSProp, Malladi et al., arXiv 2205.10287.
    """
    if how not in SCALINGS:
        raise ConfigurationError(f"got how={how!r}: it must be one of {', '.join(SCALINGS)}")
    if workers < 1:
        raise ConfigurationError(f"got {workers!r} workers: there must be at least 1")
    return {"linear": float(workers), "sqrt": math.sqrt(workers), "none": 1.0}[how]


def scaled(rate: Any, workers: int, how: str = "linear") -> float:
    """Return ``f rate``, with the f of `scale_factor`; raise if the rate is not finite."""
    return _number(rate) * scale_factor(workers, how)


@dataclass
class Warmup:
    """Raise the learning rate from that of one worker to that of N in the first epochs.

    ::

        lr := rate / f (p (f - 1) + 1)        for p = min(e / warmup_epochs, 1)

    f is that of `scale_factor`, e the epochs done with the part of the present one, and ``rate``
    the learning rate after the warm-up. Source: Goyal et al. (see `scale_factor`), section 2.2.
    """

    rate: float
    warmup_epochs: float
    workers: int
    how: str = "linear"
    finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rate = _number(self.rate)
        if not (self.rate > 0 and self.warmup_epochs > 0):
            raise ConfigurationError(
                f"got a learning rate of {self.rate!r} and warmup_epochs={self.warmup_epochs!r}: both must be greater "
                "than 0"
            )
        self.factor = scale_factor(self.workers, self.how)

    def at(self, epochs: float) -> float | None:
        """Return the learning rate after so many epochs; None once it has been ``rate``."""
        if self.finished:
            return None
        self.finished = epochs >= self.warmup_epochs or self.factor == 1
        progress = min(epochs / self.warmup_epochs, 1.0)
        return self.rate / self.factor * (progress * (self.factor - 1) + 1)


def scaled_schedule(schedule: Callable[[Any], Any], workers: int) -> Callable[[Any], Any]:
    """Return lr(k) := schedule(N k), for the k steps of one worker; it ends at the same epoch."""
    if not callable(schedule):
        raise ConfigurationError(
            f"got {schedule!r}: pass a function of the number of steps done; a number is scaled by scale_learning_rate"
        )
    if isinstance(schedule, functools.partial) and schedule.func is _at:
        raise ConfigurationError("got a schedule that is scaled already: scale it only once")
    return schedule if workers == 1 else functools.partial(_at, schedule, workers)


def unscaled_text(what: str, workers: int, remedy: str) -> str:
    """Return the warning about a schedule that counts a worker's batches and was not scaled."""
    return (
        f"{what}: in an epoch a worker makes 1/{workers} of the steps of one process with the "
        f"same batch size, so a schedule for one process ends {workers} times as late; {remedy}, "
        f"unless the schedule was written for batches {workers} times as large"
    )


def _at(schedule: Callable[[Any], Any], workers: int, step: Any) -> Any:
    return schedule(workers * step)


def _number(rate: Any) -> float:
    try:
        number = math.nan if isinstance(rate, (str, bytes, bool)) else float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigurationError(
            f"got {rate!r} as a learning rate: pass a finite number, such as the value of a shared variable or the "
            "initial learning rate of a schedule"
        )
    return number
