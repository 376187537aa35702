"""Outer-step rules: workers train apart from a common start, wait for one another, and go on from a common start.

One synchronization of all workers is a round. With ``c`` the center, from which all began, and ``x_i`` the parameters
of worker i, one of the N workers that take part::

    d := 1/N sum_i (x_i - c)          the mean progress
    c := c + step(d)                  the rule's outer step
    x_i := c

A rule is its outer step, which is element-wise and pure. N are the workers whose progress came: one that died, left,
or joined too late for this round is not among them.

``part`` is the length of a round as a part of the period, in [0, 1]: 1 unless an epoch ended before the period did.
Momentum acts for as long as the round was: ``mu ** part`` stays of it, and ``part`` of its step is made. Full momentum
at rounds of a few batches drives the center away. With ``part = 1`` the equations are the papers'.

Such a rule takes a center in the memory of the host, also where parameters are on devices: the center on devices has
no rounds. Contributions are added in the order of arrival, so with three or more workers the last bits depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import EASGD, Array, Rule, State

__all__ = ["EAMSGD", "DiLoCo", "LocalSGD", "OuterRule", "SlowMo", "waits"]

# What FairScale's documentation of SlowMo recommends from so many nodes on.
_SLOW_MOMENTA = ((16, 0.6), (8, 0.5), (4, 0.2), (1, 0.0))


class OuterRule(Rule, Protocol):
    """A rule of which all workers make one step together, at the end of each round.

    Its ``sync`` is a round of one worker. It keeps no local state.

    Attributes
    ----------
    waits : bool
        True: workers wait for one another at each synchronization.
    step_kernel : str or None
        Name of the fused form of the step in `platoon_base._kernels`, or None if there is only the NumPy form.
    """

    waits: ClassVar[bool]
    step_kernel: ClassVar[str | None]

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return the scalar arguments of the fused step, behind the number of contributions."""
        ...

    def step(self, d: Array, center: Array, center_state: State, part: float) -> None:
        """Apply the outer step once, in place.

        Parameters
        ----------
        d : ndarray, shape (n,)
            The mean progress of the workers, which may be overwritten.
        center : ndarray, shape (n,), of the same float dtype
        center_state : tuple of ndarray, each of shape (n,)
        part : float in [0, 1]
            Length of the round as a part of the period, the mean of the workers'.
        """
        ...


def waits(rule: Any) -> bool:
    """Tell whether the workers wait for one another at each synchronization by this rule."""
    return bool(getattr(rule, "waits", False))


class _Outer:
    """The members that outer rules have in common."""

    kernel: ClassVar[str | None] = None
    local_state: ClassVar[tuple[str, ...]] = ()
    center_state: ClassVar[tuple[str, ...]] = ()
    waits: ClassVar[bool] = True
    step_kernel: ClassVar[str | None] = None

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``()``: there is no fused form of a whole synchronization."""
        return ()

    def step(self, d: Array, center: Array, center_state: State, part: float) -> None:
        raise NotImplementedError

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply a round of one worker in place: ``d = x - c``, the outer step, ``x := c``."""
        self.step(local - center, center, center_state, 1.0)
        local[...] = center


@dataclass(frozen=True)
class LocalSGD(_Outer):
    """Local SGD: now and then all workers go on from the mean of their parameters.

    ::

        c := 1/N sum_i x_i
        x_i := c

    Computed as ``c + 1/N sum_i (x_i - c)``. At a period of 1, with plain SGD inside and equal mini-batches, it is SGD
    on mini-batches N times as large. The same as ``DiLoCo(1, 0)``.

    References
    ----------
    Stich: Local SGD converges fast and communicates little, ICLR 2019, arXiv 1805.09767, algorithm 1.
    McMahan et al.: Communication-efficient learning of deep networks from decentralized data, AISTATS 2017, arXiv
    1602.05629, algorithm 1, with all clients and equal weights.
    """

    step_kernel: ClassVar[str | None] = "outer_mean"

    def resolved(self, size: int) -> LocalSGD:
        """Return the rule itself: it has no parameter."""
        return self

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return ``()``."""
        return ()

    def step(self, d: Array, center: Array, center_state: State = (), part: float = 1.0) -> None:
        """See `OuterRule.step`."""
        center += d


@dataclass(frozen=True)
class SlowMo(_Outer):
    """Slow momentum: Local SGD whose center moves with heavy-ball momentum.

    ::

        d := 1/N sum_i (x_i - c)
        c := c + outer_lr (d + r mu m)
        m := mu^r m + d
        x_i := c

    r is the ``part``; with r = 1 the center moves by ``outer_lr`` times the new m. The paper's u is -m over the inner
    learning rate, by which it multiplies again: with a constant rate that cancels, and after a change of the rate the
    momentum here keeps its length. The state of the inner optimizer stays each worker's own.

    Parameters
    ----------
    momentum : float in [0, 1), optional
        mu, the paper's beta. The default goes by the number of workers: 0 below 4, 0.2 from 4 on, 0.5 from 8 on,
        0.6 from 16 on. With 0 and an ``outer_lr`` of 1 it is `LocalSGD`.
    outer_lr : float, greater than 0
        The paper's alpha.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.

    References
    ----------
    Wang, Tantia, Ballas, Rabbat: SlowMo: Improving communication-efficient distributed SGD with slow momentum,
    ICLR 2020, arXiv 1910.00643, algorithm 1. The default momenta are those that FairScale's documentation recommends.
    """

    momentum: float | None = None
    outer_lr: float = 1.0

    center_state: ClassVar[tuple[str, ...]] = ("momentum",)
    step_kernel: ClassVar[str | None] = "outer_heavy_ball"

    def __post_init__(self) -> None:
        _require_outer_lr(self.outer_lr)
        if self.momentum is not None:
            _require_momentum(self.momentum)

    def resolved(self, size: int) -> SlowMo:
        """Fill in the momentum for ``size`` workers if none was given."""
        if self.momentum is not None:
            return self
        return replace(self, momentum=next(mu for least, mu in _SLOW_MOMENTA if size >= least))

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return ``outer_lr``, what is left of m, and the part of m in the step."""
        if self.momentum is None:
            raise ConfigurationError(
                "the momentum is not known yet: it goes by the number of workers; call resolved(N)"
            )
        return _momentum_args(self.outer_lr, self.momentum, part)

    def step(self, d: Array, center: Array, center_state: State, part: float = 1.0) -> None:
        """See `OuterRule.step`; ``center_state = (m,)``."""
        (m,) = center_state
        lr, decay, ahead = (center.dtype.type(value) for value in self.step_args(part))
        center += lr * (d + ahead * m)
        m *= decay
        m += d


@dataclass(frozen=True)
class DiLoCo(_Outer):
    """DiLoCo: the center moves with Nesterov momentum along the mean progress of the workers.

    ::

        d := 1/N sum_i (x_i - c)
        m := mu^r m + d
        c := c + outer_lr (d + r mu m)
        x_i := c

    r is the ``part``. In the paper's terms -d is the outer gradient, and the step is that of SGD with Nesterov momentum
    as PyTorch computes it. The state of the inner optimizer, AdamW in the paper, stays each worker's own.

    A synchronization every 10 to 30 batches learned fastest with small models, and the paper's 500 are for large ones.
    Below about 10 batches an outer momentum of 0.8 is too much: use `LocalSGD`, or less momentum. So are the paper's
    0.7 and 0.9 with 2 workers.

    Parameters
    ----------
    outer_lr : float, greater than 0
    momentum : float in [0, 1)
        mu. With 0 and an ``outer_lr`` of 1 it is `LocalSGD`.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.

    References
    ----------
    Douillard et al.: DiLoCo: Distributed low-communication training of language models, 2023, arXiv 2311.08105,
    algorithm 1.
    """

    outer_lr: float = 0.7
    momentum: float = 0.8

    center_state: ClassVar[tuple[str, ...]] = ("momentum",)
    step_kernel: ClassVar[str | None] = "outer_nesterov"
    period: ClassVar[int] = 20

    def __post_init__(self) -> None:
        _require_outer_lr(self.outer_lr)
        _require_momentum(self.momentum)

    def resolved(self, size: int) -> DiLoCo:
        """Return the rule itself: its arguments hold for any number of workers."""
        return self

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return ``outer_lr``, what is left of m, and the part of m in the step."""
        return _momentum_args(self.outer_lr, self.momentum, part)

    def step(self, d: Array, center: Array, center_state: State, part: float = 1.0) -> None:
        """See `OuterRule.step`; ``center_state = (m,)``."""
        (m,) = center_state
        lr, decay, ahead = (center.dtype.type(value) for value in self.step_args(part))
        m *= decay
        m += d
        center += lr * (d + ahead * m)


@dataclass(frozen=True)
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

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, arXiv 1412.6651, algorithm 2.
    """


def _momentum_args(outer_lr: float, momentum: float, part: float) -> tuple[float, ...]:
    return float(outer_lr), float(momentum) ** part, float(momentum) * part


def _require_outer_lr(outer_lr: Any) -> None:
    if not (isinstance(outer_lr, (int, float, np.number)) and 0 < outer_lr < np.inf):
        raise ConfigurationError(
            f"got outer_lr={outer_lr!r}: the center would not follow the workers; give a number greater than 0, "
            "such as 0.7, or 1 for whole steps"
        )


def _require_momentum(momentum: Any) -> None:
    if not (isinstance(momentum, (int, float, np.number)) and 0 <= momentum < 1):
        raise ConfigurationError(
            f"got momentum={momentum!r}: outside [0, 1) the center swings ever farther; try 0.8, or 0 for none"
        )
