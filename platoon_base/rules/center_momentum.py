"""Elastic averaging with momentum at the center that also moves all workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import CenterState, LocalState, Rule, number_of, require_number
from platoon_base.rules.easgd import EASGD
from platoon_base.rules.forms import Form

# Measured with 2, 4 and 8 workers, see docs/learning.md: more workers allow a larger gain.
_GAIN_OF_ONE = 1.35
# Averages the pull of about the last 100 mini-batches; shorter momentum resonates with the
# optimizers.
_MU, _MU_PERIOD = 0.9, 10


@dataclass(frozen=True)
class CenterMomentum(Rule):
    """Elastic averaging in a frame of reference that the center's momentum moves.

    ::

        x := x + (s - s_x)                      the momentum's moves since the last time
        d := alpha (x - c)
        m := b m + (1 - b) d                    with b = mu^(1/N): the recent mean pull
        j := gain m
        x := x - d + j
        c := c + d + j
        s := s + j
        s_x := s

    ``s`` is the sum of all moves ``j``, and ``s_x`` its value at this worker's latest
    synchronization. In the moving frame, ``x - s_x`` and ``c - s`` follow `EASGD`. Workers do not
    wait for each other and no worker's parameters jump. A steady pull moves the center ``1 + gain``
    times as far as EASGD does; with gain 0 the rule is EASGD. N is the number of live workers;
    workers may join, leave and die.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        Strength of the spring; ``0.9 / N`` by default, as for `EASGD`.
    momentum : float in [0, 1), optional
        mu: the part of the mean pull that remains after each worker has synchronized once. 0.9 by
        default, and ``0.9 ** (period / 10)`` in adapters with a period below 10 mini-batches.
    gain : float, at least 0, optional
        How much farther the mean pull moves the center; ``1.35 sqrt(N)`` by default.

    Raises
    ------
    ConfigurationError
        If a value is outside its range.

    Notes
    -----
    Momentum that moves only the center, as in Delayed Nesterov (Liu et al. 2024, arXiv 2401.09135,
    algorithm 3), harms workers that synchronize one after the other: each is pulled back to a
    center that the others' momentum has moved past it. docs/learning.md has the measurements.

    References
    ----------
    The springs: Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015,
    equations 5 and 6. The moving frame is new here.
    """

    alpha: float | None = None
    momentum: float | None = None
    gain: float | None = None

    kernel: ClassVar[str | None] = "center_momentum"
    local_state: ClassVar[tuple[LocalState | str, ...]] = (LocalState("s_x", follows="s"),)
    center_state: ClassVar[tuple[CenterState | str, ...]] = (CenterState("m"), CenterState("s", kept=True))
    form: ClassVar[Form | None] = Form(
        """
        x := x + (s - s_x)
        d := alpha * (x - c)
        m := b * m + (1 - b) * d
        j := gain * m
        x := x + (j - d)
        c := c + (j + d)
        s := s + j
        s_x := s
        """,
        scalars=("alpha", "b", "gain"),
    )

    # Number of workers; the mean pull decays by mu in as many synchronizations.
    workers: int = field(default=1, repr=False)
    batches: int = field(default=_MU_PERIOD, repr=False)  # At most _MU_PERIOD.

    def __post_init__(self) -> None:
        EASGD(self.alpha)
        if self.momentum is not None:
            require_number("momentum", self.momentum, 0 <= number_of(self.momentum) < 1, "[0, 1)", "0.9")
        if self.gain is not None:
            require_number("gain", self.gain, 0 <= number_of(self.gain) < np.inf, "[0, infinity)", "2")

    def at_period(self, period: int) -> CenterMomentum:
        return self if self.momentum is not None else replace(self, batches=min(period, _MU_PERIOD))

    def resolved(self, size: int) -> CenterMomentum:
        return replace(
            self,
            alpha=0.9 / size if self.alpha is None else self.alpha,
            momentum=_MU ** (self.batches / _MU_PERIOD) if self.momentum is None else self.momentum,
            gain=_GAIN_OF_ONE * size**0.5 if self.gain is None else self.gain,
            workers=size,
        )

    def kernel_args(self) -> tuple[float, ...]:
        if self.alpha is None or self.momentum is None or self.gain is None:
            raise ConfigurationError("alpha and gain are unknown: they depend on N; call resolved(N) first")
        return float(self.alpha), float(self.momentum) ** (1 / self.workers), float(self.gain)
