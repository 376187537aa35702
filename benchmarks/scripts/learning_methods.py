"""The methods of benchmarks/learning.py: a line each in the table at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from platoon_base import EASGD, CenterMomentum, DiLoCo, LocalSGD, SlowMo
from platoon_base.rules import AveragedEASGD, GoSGD, default_period, default_rule, gossips, shares_moments, waits

ALONE, DEFAULTS, AVERAGED = "alone", "defaults", "averaged"
SCALINGS: dict[str, tuple[str, Callable[[int], float]]] = {
    "unchanged": ("unchanged", lambda workers: 1.0),
    "sqrt": ("times the square root of N (Krizhevsky, arXiv 1404.5997, section 5)", math.sqrt),
    "sqrt-1.5": ("times 1.5 sqrt(N), found by the simulation", lambda workers: 1.5 * math.sqrt(workers)),
    "linear": ("times N, without warm-up (Goyal et al., arXiv 1706.02677, section 2.1)", float),
}


class Method(NamedTuple):
    """A way to train one model on N workers.

    Attributes
    ----------
    rule : callable() -> Rule, or one of ALONE, DEFAULTS, AVERAGED
        What the workers synchronize by. ALONE calls nothing of an adapter, DEFAULTS calls it without arguments, and
        AVERAGED takes the mean of all gradients in each step.
    every_n_batches : int
        Mini-batches of a worker from one synchronization to the next; those of the adapters for DEFAULTS.
    scaling : str
        By what the best learning rate of a single process is multiplied on N workers, a key of SCALINGS.
    averages : bool
        Whether Adam keeps an average of the weights (``use_ema``), which is validated: with Keras 3 alone.
    """

    rule: Callable[[], Any] | str
    every_n_batches: int = 10
    scaling: str = "unchanged"
    averages: bool = False

    @property
    def waits(self) -> bool:
        """Whether workers wait for one another before the end of an epoch, so that a slow one slows all."""
        if isinstance(self.rule, str) and self.rule != DEFAULTS:
            return self.rule == AVERAGED
        return waits(self._made)

    @property
    def copies(self) -> int:
        """How many times the size of the model an exchange has: with moments, those of Adam and the average."""
        shares = self.rule not in (ALONE, AVERAGED) and shares_moments(self._made)
        return 3 + self.averages if shares else 1

    @property
    def _made(self) -> Any:
        """The rule, where there is one."""
        return default_rule(default_period()) if isinstance(self.rule, str) else self.rule()

    @property
    def what(self) -> str:
        """The method in words."""
        if self.rule == ALONE:
            return "one worker of a job, which shares nothing"
        if self.rule == DEFAULTS:
            return f"an adapter that is told nothing: {self._made!r} every {default_period()} mini-batches"
        if self.rule == AVERAGED:
            return "the mean of all gradients in each step"
        return f"{self.rule()!r} every {self.every_n_batches} mini-batches"

    @property
    def rate(self) -> str:
        """The scaling of the learning rate in words, with its source."""
        return SCALINGS[self.scaling][0]

    def scale(self, workers: int) -> float:
        """Return by what the best learning rate of a single process is multiplied."""
        return SCALINGS[self.scaling][1](workers)

    def exchanges(self, steps: int, ends: int) -> int:
        """Return how many times a worker that makes so many steps exchanges its parameters, or its gradients.

        A rule does so every so many steps, and at an end, after which it counts anew: with Keras that of each epoch,
        with Lasagne that of the training.
        """
        if self.rule == ALONE:
            return 0
        if self.rule == AVERAGED:
            return steps
        if self.rule != DEFAULTS and gossips(self._made):  # as many as are expected; a message goes one way
            return round(steps / self.every_n_batches * self._made.probability / 2)
        period = default_period() if self.rule == DEFAULTS else self.every_n_batches
        return ends * (steps // ends // period + 1)


PLAIN, PLAIN_AVERAGE = "plain", "plain-average"
METHODS = {
    PLAIN: Method(ALONE),
    "defaults": Method(DEFAULTS),
    "momentum-10": Method(CenterMomentum, 10),
    "momentum-10-sqrt": Method(CenterMomentum, 10, "sqrt"),
    "diloco-10": Method(DiLoCo, 10),
    "diloco-20": Method(DiLoCo, 20),
    "local-sgd-10": Method(LocalSGD, 10),
    "local-sgd-10-sqrt": Method(LocalSGD, 10, "sqrt"),
    "slowmo-10": Method(SlowMo, 10),
    "easgd-10": Method(EASGD, 10),
    "easgd-10-sqrt": Method(EASGD, 10, "sqrt"),
    "easgd-10-linear": Method(EASGD, 10, "linear"),
    "easgd-4-sqrt": Method(EASGD, 4, "sqrt"),
    "easgd-4-linear": Method(EASGD, 4, "linear"),
    "easgd-1-linear": Method(EASGD, 1, "linear"),
    "easgd-2-moments": Method(lambda: EASGD(moments=True), 2, "sqrt-1.5"),
    "easgd-1-moments": Method(lambda: EASGD(moments=True), 1, "sqrt-1.5"),
    "local-sgd-10-moments": Method(lambda: LocalSGD(moments=True), 10, "sqrt-1.5"),
    PLAIN_AVERAGE: Method(ALONE, averages=True),
    "easgd-2-moments-average": Method(lambda: EASGD(moments=True), 2, "sqrt-1.5", averages=True),
    "averaged-sqrt-average": Method(AVERAGED, scaling="sqrt", averages=True),
    "averaged-easgd-035": Method(lambda: AveragedEASGD(pull=0.35), 1),
    "averaged": Method(AVERAGED),
    "averaged-sqrt": Method(AVERAGED, scaling="sqrt"),
    "averaged-linear": Method(AVERAGED, scaling="linear"),
    "momentum-4": Method(CenterMomentum, 4),
    "momentum-4-sqrt": Method(CenterMomentum, 4, "sqrt"),
    "diloco-10-sqrt": Method(DiLoCo, 10, "sqrt"),
    "diloco-paper-20": Method(lambda: DiLoCo(0.7, 0.9), 20),
    "local-sgd-4-sqrt": Method(LocalSGD, 4, "sqrt"),
    "slowmo-10-sqrt": Method(SlowMo, 10, "sqrt"),
    "gosgd": Method(GoSGD, 1),
    "gosgd-01": Method(lambda: GoSGD(probability=0.1), 1),
    "gosgd-01-sqrt": Method(lambda: GoSGD(probability=0.1), 1, "sqrt"),
    "gosgd-01-linear": Method(lambda: GoSGD(probability=0.1), 1, "linear"),
}  # EAMSGD is for workers that train by SGD with momentum: with Adam it is EASGD
