"""The learning rate of N workers: scaled with their number, warmed up, and schedules for it. No clock, no I/O."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = ["SCALINGS", "Warmup", "scale_factor", "scaled", "scaled_schedule"]

SCALINGS = ("linear", "sqrt", "none")


def scale_factor(workers: int, how: str = "linear") -> float:
    """Return the number by which N workers multiply the learning rate of one.

    ::

        f := N            linear
        f := sqrt(N)      sqrt
        f := 1            none

    N workers that each keep the batch size of one process take mini-batches N times as large together. With plain SGD
    and with momentum, one step on such a mini-batch then moves the parameters about as N steps of one process do. The
    square root keeps the covariance of a step of SGD the same. It is also the rule for Adam and RMSProp.

    Deviation: for Adam and RMSProp, Malladi et al. also let beta_1, beta_2 and epsilon change with N. Those stay what
    they are here.

    Parameters
    ----------
    workers : int, at least 1
    how : {"linear", "sqrt", "none"}

    Returns
    -------
    float
        1.0 for one worker.

    References
    ----------
    linear: Goyal et al.: Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv 1706.02677, section 2.1.
    sqrt: Krizhevsky: One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997. Hoffer et al.:
    Train longer, generalize better, arXiv 1705.08741. For Adam and RMSProp, Malladi et al.: On the SDEs and scaling
    rules for adaptive gradient algorithms, arXiv 2205.10287.
    """
    if how not in SCALINGS:
        raise ConfigurationError(f"got how={how!r}: it must be one of {', '.join(SCALINGS)}")
    if workers < 1:
        raise ConfigurationError(f"got {workers!r} workers: there must be at least 1")
    return {"linear": float(workers), "sqrt": math.sqrt(workers), "none": 1.0}[how]


def scaled(rate: Any, workers: int, how: str = "linear") -> float:
    """Return ``f rate``, with the f of `scale_factor`.

    Raises
    ------
    ConfigurationError
        If the rate is no finite number.
    """
    return _number(rate) * scale_factor(workers, how)


@dataclass
class Warmup:
    """Raise the learning rate from that of one worker to that of N in the first epochs.

    ::

        lr := rate / f (p (f - 1) + 1)        for p = min(e / warmup_epochs, 1), with the f of `scale_factor`

    e are the epochs done, with the part of the present one. The ramp is a straight line, whatever f is.

    Parameters
    ----------
    rate : float, greater than 0
        The learning rate after the warm-up, that of N workers.
    warmup_epochs : float, greater than 0
    workers : int, at least 1
    how : {"linear", "sqrt", "none"}
        How ``rate`` was scaled.

    References
    ----------
    Goyal et al. (see `scale_factor`), section 2.2, gradual warm-up.
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
        """Return the learning rate after so many epochs, or None if it has been ``rate`` before.

        From then on others may change it. With a factor of 1 that is so after the first call.
        """
        if self.finished:
            return None
        self.finished = epochs >= self.warmup_epochs or self.factor == 1
        progress = min(epochs / self.warmup_epochs, 1.0)
        return self.rate / self.factor * (progress * (self.factor - 1) + 1)


def scaled_schedule(schedule: Callable[[Any], Any], workers: int) -> Callable[[Any], Any]:
    """Let a schedule that was written for one process end at the same epoch on N workers.

    ::

        lr(k) := schedule(N k)        for k, the steps of one of the workers

    In an epoch these are N times fewer than those of one process with the same batch size.

    Parameters
    ----------
    schedule : callable
        Takes the number of steps done, and returns the learning rate.
    workers : int, at least 1

    Returns
    -------
    callable
        Takes one argument. It can be pickled if ``schedule`` can. The schedule itself for one worker.

    Raises
    ------
    ConfigurationError
        If the schedule cannot be called, or is scaled already.
    """
    if not callable(schedule):
        raise ConfigurationError(
            f"got {schedule!r}: pass a function of the number of steps done; a number is scaled by scale_learning_rate"
        )
    if isinstance(schedule, functools.partial) and schedule.func is _at:
        raise ConfigurationError("got a schedule that is scaled already: scale it once")
    return schedule if workers == 1 else functools.partial(_at, schedule, workers)


def _at(schedule: Callable[[Any], Any], workers: int, step: Any) -> Any:
    return schedule(workers * step)


def _number(rate: Any) -> float:
    """Return a learning rate as a float; NumPy's numbers and arrays of no dimension are numbers too."""
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
