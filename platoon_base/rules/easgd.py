"""Elastic averaging: springs between the workers and the center."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import Rule, require_flag
from platoon_base.rules.forms import Form

__all__ = ["EAMSGD", "EASGD"]


@dataclass(frozen=True, repr=False)
class EASGD(Rule):
    """Elastic averaging: a spring pulls worker and center towards each other.

    ::

        d := alpha (x - c)
        x := x - d
        c := c + d

    Both sides use the values before the synchronization, so ``x + c`` stays what it was.

    N workers at one worker's learning rate learn little sooner than one. With a rate N times as large and a period of
    1, or twice as large and a period of 4, they do: docs/learning.md has the measurements. With ``moments=True``
    a period of 2 and 1.5 sqrt(N) times the rate were measured.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        Strength of the spring. The default is ``0.9 / N`` for a job of N workers: the paper's beta = N alpha = 0.9.
    moments : bool
        Whether the adapters share the moments of the optimizer (Adam's, velocities) by the same springs: all state of
        it that has the shape of a parameter. Each worker then steps along gradients of all. Three times as much is
        exchanged with Adam. In a loop of your own, pass the moments to `Worker.init_shared_params` yourself.

    Raises
    ------
    ConfigurationError
        If alpha is outside (0, 1].

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, equations 5 and 6. That moments are
    averaged is due to Iacob et al.: DES-LOC: Desynced low communication adaptive optimizers, 2025, arXiv 2505.22549,
    where workers wait for one another.
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
                f"got alpha={self.alpha!r}: outside (0, 1] the worker and the center drive each other apart; "
                "leave it out for 0.9 / N, or try 0.5"
            )

    def __repr__(self) -> str:
        """Return it as a script writes it; checkpoints of before there were moments say so, too."""
        return f"{type(self).__name__}(alpha={self.alpha!r}{', moments=True' if self.moments else ''})"

    def resolved(self, size: int) -> EASGD:
        """Fill in ``alpha = 0.9 / size`` if no alpha was given."""
        return self if self.alpha is not None else replace(self, alpha=0.9 / size)

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``(alpha,)``."""
        if self.alpha is None:
            raise ConfigurationError(
                "alpha is not known yet: it is 0.9 / N by default; call resolved(N) first, or give alpha"
            )
        return (float(self.alpha),)


@dataclass(frozen=True, repr=False)
class EAMSGD(EASGD):
    """Elastic averaging with momentum: `EASGD`, for workers whose own optimizer is SGD with Nesterov momentum.

    ::

        v := delta v - eta g(x + delta v)     the worker's own optimizer, at each batch
        x := x + v

        d := alpha (x - c)                    at each synchronization, as in EASGD
        x := x - d
        c := c + d

    The elastic force acts on x alone: the velocity v stays the worker's own and never holds a part of it. So the
    equations between worker and center are those of `EASGD`, and the workers do not wait for one another. Use
    ``lasagne.updates.nesterov_momentum``, or SGD with ``momentum`` and ``nesterov=True`` in Keras, and a delta of up to
    0.99 with a learning rate smaller by as much.

    These optimizers keep the point at which they take the next gradient, ``y = x + delta v``, in the parameters. The
    spring then pulls y to the center, the paper's pulls x.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        See `EASGD`.
    moments : False
        Velocities are each worker's own.

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, arXiv 1412.6651, algorithm 2.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moments:
            raise ConfigurationError(
                "got EAMSGD(moments=True): in EAMSGD the velocity never holds a part of the elastic force; use "
                "EASGD(moments=True) to share it"
            )
