"""Slow momentum: an outer step with heavy-ball momentum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import CenterState
from platoon_base.rules.forms import Form
from platoon_base.rules.outer import OuterRule, momentum_args, require_momentum, require_outer_lr

__all__ = ["SlowMo"]

# (number of workers, momentum): recommended by FairScale's documentation from this number on.
_SLOW_MOMENTA = ((16, 0.6), (8, 0.5), (4, 0.2), (1, 0.0))


@dataclass(frozen=True)
class SlowMo(OuterRule):
    """Slow momentum: Local SGD whose center moves with heavy-ball momentum.

    ::

        d := 1/N sum_i (x_i - c)
        c := c + outer_lr (d + r mu m)
        m := mu^r m + d
        x_i := c

    r is the length of the round relative to the period: 1, or less if an epoch ended. With r = 1
    the center moves by ``outer_lr`` times the new m. The paper's u is -m divided by the inner
    learning rate, and its step multiplies u by that rate: with a constant rate this cancels, and
    after a change of the rate the momentum here keeps its length. The state of the inner optimizer
    is not shared.

    Parameters
    ----------
    momentum : float in [0, 1), optional
        mu, the paper's beta. The default depends on the number of workers: 0 below 4, 0.2 from 4,
        0.5 from 8, 0.6 from 16. With 0 and an ``outer_lr`` of 1 this is `LocalSGD`.
    outer_lr : float, greater than 0
        The paper's alpha.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.

    References
    ----------
    Wang, Tantia, Ballas, Rabbat: SlowMo: Improving communication-efficient distributed SGD with
    slow momentum, ICLR 2020, arXiv 1910.00643, algorithm 1. Default momenta: FairScale's
    documentation.
    """

    momentum: float | None = None
    outer_lr: float = 1.0

    center_state: ClassVar[tuple[CenterState | str, ...]] = (CenterState("m"),)
    step_kernel: ClassVar[str | None] = "outer_heavy_ball"
    form: ClassVar[Form | None] = Form(
        """
        c := c + lr * (d + ahead * m)
        m := decay * m + d
        """,
        scalars=("lr", "decay", "ahead"),
    )

    def __post_init__(self) -> None:
        require_outer_lr(self.outer_lr)
        if self.momentum is not None:
            require_momentum(self.momentum)

    def resolved(self, size: int) -> SlowMo:
        if self.momentum is not None:
            return self
        return replace(self, momentum=next(mu for least, mu in _SLOW_MOMENTA if size >= least))

    def step_args(self, part: float) -> tuple[float, ...]:
        if self.momentum is None:
            raise ConfigurationError(
                "the momentum is unknown: it depends on the number of workers; call resolved(N) first"
            )
        return momentum_args(self.outer_lr, self.momentum, part)
