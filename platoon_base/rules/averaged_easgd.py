"""Elastic averaging with steps scaled by the number of workers and an average of the center."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import CenterState, LocalState, Rule, number_of, require_number
from platoon_base.rules.easgd import EASGD
from platoon_base.rules.forms import Form

_ALL_UNTIL = 512  # Up to this count, the average uses every synchronization.
_SMALLEST_PART = 1 / 32  # Steps are not halved below this part; enough for 256 workers.


@dataclass(frozen=True)
class AveragedEASGD(Rule):
    """Elastic averaging of parameters and moments, with scaled steps and an average of the center.

    ::

        x := x + (s - 1) (x - x_old)            the worker's steps since the last time, scaled
        e := x - c
        x := x - pull e
        c := c + alpha e
        a := a + w (c - a)                      with w = min(1, (k + 1) / (N (n + k)))
        x_old := x

    n is the number of the worker's synchronizations, and
    ``s = 1 + (scale sqrt(M) - 1) min(1, n / warmup)``. N live workers share this center, and M live
    workers are in the job: M is larger than N on several hosts, each of which has a center. Both
    are at least 2. The optimizer's moments are shared as by `EASGD` with the same alpha. The
    average a is validated, saved, and left in the model in place of the center.

    The script keeps the learning rate and schedule of one worker. With a period of 1, the scaled
    steps equal a rate ``scale sqrt(M)`` times as large, for SGD, momentum and Adam. Longer periods
    are worse, because gradients are then taken closer together than the steps are. If the training
    loss of an epoch is more than twice its best, Keras's `fit` halves the scale. Hosts exchange
    only parameters, not moments; the mean of the hosts' averages is validated.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        How far the center moves to the worker; ``0.9 / N`` by default.
    pull : float in (0, 1]
        How far the worker moves to the center.
    scale : float, greater than 0, or None
        Steps become ``scale sqrt(M)`` times as long; None leaves them unchanged.
    k : float, at least 0
        The average covers about the last ``1 / (k + 1)`` of the synchronizations. Late in training
        it uses every second center, every third and so on, with a correspondingly larger weight:
        smaller weights would be lost in float32.
    warmup : int, at least 0
        Synchronizations of a worker until its steps have their full length.

    Raises
    ------
    ConfigurationError
        If a value is outside its range. Parameters in half precision are refused when they are
        shared.

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, equations 5 and
    6, with two strengths. The average: Shamir, Zhang: Stochastic gradient descent for non-smooth
    optimization, 2012, arXiv 1212.1824. The moments: Iacob et al.: DES-LOC, 2025, arXiv 2505.22549.
    The warm-up: Goyal et al., arXiv 1706.02677. Scaling steps in the synchronization is new here.
    """

    alpha: float | None = None
    pull: float = 0.5
    scale: float | None = 2.0
    k: float = 16.0
    warmup: int = 50

    moments = True  # Without an annotation it is no argument of the dataclass.
    period: ClassVar[int] = 1
    kernel: ClassVar[str | None] = "averaged_easgd"
    local_state: ClassVar[tuple[LocalState | str, ...]] = (LocalState("x_old"),)
    center_state: ClassVar[tuple[CenterState | str, ...]] = (CenterState("a", average=True),)
    form: ClassVar[Form | None] = Form(
        """
        x := x + more * (x - x_old)
        e := x - c
        x := x - pull * e
        c := c + alpha * e
        a := a + weight * (c - a)
        x_old := x
        """,
        scalars=("more", "pull", "alpha", "weight"),
    )

    # Set by `resolved`, `in_job`, `at_count` and `shortened`.
    workers: int = field(default=0, repr=False)
    of_job: int = field(default=0, repr=False)  # Workers on all hosts.
    count: int = field(default=1, repr=False)
    before: int = field(default=0, repr=False)  # Synchronizations in earlier trainings.
    part: float = field(default=1.0, repr=False)  # Remaining part of the scale.

    def __post_init__(self) -> None:
        EASGD(self.alpha)
        require_number("pull", self.pull, 0 < number_of(self.pull) <= 1, "(0, 1]", "0.5")
        require_number(
            "scale",
            self.scale,
            self.scale is None or 0 < number_of(self.scale) < np.inf,
            "(0, infinity), or None",
            "None",
        )
        require_number("k", self.k, 0 <= number_of(self.k) < np.inf, "[0, infinity)", "16")
        whole = isinstance(self.warmup, int) and not isinstance(self.warmup, bool) and self.warmup >= 0
        require_number("warmup", self.warmup, whole, "the whole numbers from 0", "50")

    def resolved(self, size: int) -> AveragedEASGD:
        return replace(self, alpha=0.9 / size if self.alpha is None else self.alpha, workers=size)

    def in_job(self, size: int) -> AveragedEASGD:
        return replace(self, of_job=size)

    def at_count(self, count: int, before: int = 0) -> AveragedEASGD:
        return replace(self, count=count, before=before)

    def shortened(self) -> AveragedEASGD:
        """Return the rule with steps half as long, but no shorter than the script's."""
        return self if self.part < _SMALLEST_PART else replace(self, part=self.part / 2)

    def of_moments(self) -> EASGD:
        return EASGD(self.alpha)

    @property
    def _all(self) -> int:
        return max(self.workers, self.of_job)

    @property
    def _factor(self) -> float:
        """Scale of the steps after the warm-up."""
        if self.scale is None:
            return 1.0
        factor = float(self.scale) * self._all**0.5
        return float(max(self.part * factor, min(1.0, factor)))

    def notice(self) -> str:
        if self.scale is None or not self.workers:
            return ""
        return (
            f"with {self._all} workers, steps are {self._factor:.3g} times as long as with your "
            'learning rate alone; AveragedEASGD(scale=None), or prepare(..., scaling="none"), '
            "leaves them unscaled"
        )

    def kernel_args(self) -> tuple[float, ...]:
        if self.alpha is None or not self.workers:
            raise ConfigurationError("alpha is unknown: it depends on N; call resolved(N) first")
        more = (self._factor - 1) * (min(1.0, (self.count + self.before) / self.warmup) if self.warmup else 1.0)
        return more, float(self.pull), float(self.alpha), self._weight

    @property
    def _weight(self) -> float:
        """Weight of the center in its average at this synchronization."""
        every = 1 + self.count // _ALL_UNTIL
        if self.count % every:
            return 0.0
        one = min(1.0, (self.k + 1) / (self.workers * (self.count + self.k)))
        return float(1 - (1 - one) ** every)
