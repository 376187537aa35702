"""Elastic averaging: springs between the workers and the center."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import Rule, require_flag
from platoon_base.rules.forms import Form


@dataclass(frozen=True, repr=False)
class EASGD(Rule):
    """Elastic averaging: a spring pulls worker and center toward each other.

    ::

        d := alpha (x - c)
        x := x - d
        c := c + d

    The sum ``x + c`` does not change.

    With one worker's learning rate, N workers learn little faster than one. Use N times the rate
    with a period of 1, or twice the rate with a period of 4. With ``moments=True``, the measured
    setting is a period of 2 and 1.5 sqrt(N) times the rate; see docs/learning.md.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        Strength of the spring; ``0.9 / N`` for N workers by default (the paper's beta is 0.9).
    moments : bool
        Whether adapters also share, by the same springs, all optimizer state with the shape of a
        parameter: Adam's moments, velocities. With Adam this exchanges three times as much data. In
        a loop of your own, pass the moments to `Worker.init_shared_params`.

    Raises
    ------
    ConfigurationError
        If alpha is outside (0, 1].

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, equations 5 and
    6. Averaged moments: Iacob et al.: DES-LOC: Desynced low communication adaptive optimizers,
    2025, arXiv 2505.22549, where workers wait for each other.
    """

    alpha: float | None = None
    moments: bool = False

    kernel: ClassVar[str | None] = "easgd"
    form: ClassVar[Form | None] = Form(
        """
        d := alpha * (x - c)
        x := x - d
        c := c + d
        """,
        scalars=("alpha",),
        adds="d",
    )
    period: ClassVar[int] = 4

    def __post_init__(self) -> None:
        require_flag("moments", self.moments)
        if self.alpha is not None and not (isinstance(self.alpha, (int, float, np.number)) and 0 < self.alpha <= 1):
            raise ConfigurationError(
                f"got alpha={self.alpha!r}: outside (0, 1] the worker and the center diverge; "
                "leave it out for 0.9 / N, or try 0.5"
            )

    def __repr__(self) -> str:
        # Checkpoints from before ``moments`` existed have the text without it.
        return f"{type(self).__name__}(alpha={self.alpha!r}{', moments=True' if self.moments else ''})"

    def resolved(self, size: int) -> EASGD:
        return self if self.alpha is not None else replace(self, alpha=0.9 / size)

    def kernel_args(self) -> tuple[float, ...]:
        if self.alpha is None:
            raise ConfigurationError(
                "alpha is unknown: it is 0.9 / N by default; call resolved(N) first, or pass alpha"
            )
        return (float(self.alpha),)


@dataclass(frozen=True, repr=False)
class EAMSGD(EASGD):
    """Elastic averaging for workers whose optimizer is SGD with Nesterov momentum.

    ::

        v := delta v - eta g(x + delta v)     the worker's own optimizer, at each batch
        x := x + v

        d := alpha (x - c)                    at each synchronization, as in EASGD
        x := x - d
        c := c + d

    The velocity v is the worker's own and contains no elastic force; the synchronization is that of
    `EASGD`. Use ``lasagne.updates.nesterov_momentum``, or SGD with ``momentum`` and
    ``nesterov=True`` in Keras, with a delta of up to 0.99 and a proportionally smaller learning
    rate.

    These optimizers store the point of the next gradient, ``y = x + delta v``, in the parameters.
    The spring therefore pulls y to the center; the paper's pulls x.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        See `EASGD`.
    moments : False
        Velocities are never shared.

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, arXiv 1412.6651,
    algorithm 2.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moments:
            raise ConfigurationError(
                "got EAMSGD(moments=True): in EAMSGD the velocity has no part of the elastic "
                "force; use EASGD(moments=True) to share it"
            )
