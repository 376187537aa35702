"""Rules that make an outer step: all workers wait for each other and continue from one center.

One synchronization of all workers is a round. With the center c and the parameters x_i of the N
workers that contribute, a round computes ``d := 1/N sum_i (x_i - c)``, then the outer step
``c := c + step(d)``, then ``x_i := c``. Contributions are added in the order of the ranks, and on
several hosts the sums in the order of the hosts: the bits do not depend on who arrives first. Only
centers in host memory have rounds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import CenterState, Rule, State, member, require_flag
from platoon_base.rules.forms import COMPILED, Form


class OuterRule(Rule):
    """Rule with one step of all workers in each round; `sync` is a round of one worker."""

    # With ``overlap``, workers resume as soon as all have contributed. After that part of the
    # period they set ``x_i := c + (x_i - s_i)``, where s_i is their contribution. This is the
    # overlap of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512), except that all
    # progress is kept, as in LOSCAR-SGD (arXiv 2605.20866). `Advanced.complete_round`, or the next
    # synchronization, completes a round. ``every`` is the period in mini-batches, equal on all
    # workers; 0 while it is unknown.
    waits: ClassVar[bool] = True
    overlap = 0.0
    every = 0
    step_kernel: ClassVar[str | None] = None

    _form_is: ClassVar[tuple[str, str, tuple[str, str]]] = "step_kernel", "step", ("d", "c")

    def at_period(self, period: int) -> OuterRule:
        rule = copy.copy(self)
        object.__setattr__(rule, "every", period)
        return rule

    def step_args(self, part: float) -> tuple[float, ...]:
        return ()

    # ``part`` is the length of a round relative to the period, in [0, 1]; less than 1 after the end
    # of an epoch. Full momentum in rounds of a few batches drives the center away.
    def step(self, d: Array, center: Array, center_state: State = (), part: float = 1.0) -> None:
        """Apply the outer step in place; ``d`` is the mean progress and may be overwritten."""
        form: Any = self.form
        form.run((d, center, *center_state), self.step_args(part))

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        self.step(local - center, center, center_state, 1.0)
        local[...] = center


def waits(rule: Any) -> bool:
    return bool(member(rule, "waits"))


def overlap_of(rule: Any) -> float:
    """Return the part of the period in which workers train during an exchange."""
    return float(member(rule, "overlap", OuterRule))


def step_form_of(rule: Any) -> Form | None:
    """Return the form that the loops of a rule's outer step were generated from, or None."""
    kernel = member(rule, "step_kernel", OuterRule)
    form = None if kernel is None else COMPILED.get(kernel)
    if form is None or len(form.center) != len(rule.center_state):
        return None
    return form if not isinstance(rule, OuterRule) or rule.form is form else None


def momentum_args(outer_lr: float, momentum: float, part: float) -> tuple[float, ...]:
    return float(outer_lr), float(momentum) ** part, float(momentum) * part


def require_outer_lr(outer_lr: Any) -> None:
    if not (isinstance(outer_lr, (int, float, np.number)) and 0 < outer_lr < np.inf):
        raise ConfigurationError(
            f"got outer_lr={outer_lr!r}, with which the center would not follow the workers: pass "
            "a number greater than 0, such as 0.7, or 1 for whole steps"
        )


def require_overlap(overlap: Any) -> None:
    if isinstance(overlap, bool) or not (isinstance(overlap, (int, float, np.number)) and 0 <= overlap < 1):
        raise ConfigurationError(
            f"got overlap={overlap!r}: it is the part of the period during which a round is "
            "exchanged, from 0 (workers wait for the round) to less than 1; try 0.25, or 0.5 on "
            "a slower link"
        )


def require_momentum(momentum: Any) -> None:
    if not (isinstance(momentum, (int, float, np.number)) and 0 <= momentum < 1):
        raise ConfigurationError(
            f"got momentum={momentum!r}: outside [0, 1) the center diverges; try 0.8, or 0 for none"
        )


@dataclass(frozen=True, repr=False)
class LocalSGD(OuterRule):
    """Local SGD: at each synchronization, all workers continue from the mean of their parameters.

    ::

        c := 1/N sum_i x_i
        x_i := c

    Computed as ``c + 1/N sum_i (x_i - c)``. With a period of 1, plain SGD and equal mini-batches,
    this is SGD with N times the batch size. It equals ``DiLoCo(1, 0)``.

    Parameters
    ----------
    moments : bool
        Whether adapters also average the optimizer's moments in the same rounds; see `EASGD`. This
        is DES-LOC with one period for all.
    overlap : float in [0, 1)
        As for `DiLoCo`. Not with ``moments``: second moments could become negative.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range, or the arguments conflict.

    References
    ----------
    Stich: Local SGD converges fast and communicates little, ICLR 2019, arXiv 1805.09767,
    algorithm 1. McMahan et al.: Communication-efficient learning of deep networks from
    decentralized data, AISTATS 2017, arXiv 1602.05629, algorithm 1, with all clients and equal
    weights. The moments: Iacob et al.: DES-LOC: Desynced low communication adaptive optimizers,
    2025, arXiv 2505.22549.
    """

    moments: bool = False
    overlap: float = 0.0

    step_kernel: ClassVar[str | None] = "outer_mean"
    form: ClassVar[Form | None] = Form("c := c + d")

    def __post_init__(self) -> None:
        require_flag("moments", self.moments)
        require_overlap(self.overlap)
        if self.moments and self.overlap:
            raise ConfigurationError(
                f"got LocalSGD(moments=True, overlap={self.overlap}): the steps of a worker "
                "during a round are added to the mean, and second moments might become negative; "
                "leave one of the two out"
            )

    def __repr__(self) -> str:
        values = (("moments", self.moments), ("overlap", self.overlap))
        return f"LocalSGD({', '.join(f'{name}={value}' for name, value in values if value)})"


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


@dataclass(frozen=True, repr=False)
class DiLoCo(OuterRule):
    """DiLoCo: the center moves with Nesterov momentum along the mean progress of the workers.

    ::

        d := 1/N sum_i (x_i - c)
        m := mu^r m + d
        c := c + outer_lr (d + r mu m)
        x_i := c

    r is the length of the round relative to the period: 1, or less if an epoch ended. -d is the
    paper's outer gradient, and the step is that of SGD with Nesterov momentum in PyTorch. The state
    of the inner optimizer, AdamW in the paper, is not shared.

    A synchronization every 10 to 30 batches learned fastest with small models; the paper's 500 is
    for large models. Below about 10 batches, or with the paper's 0.7 and 0.9 for 2 workers, the
    outer momentum is too large: reduce it, or use `LocalSGD`.

    Parameters
    ----------
    outer_lr : float, greater than 0
    momentum : float in [0, 1)
        mu. With 0 and an ``outer_lr`` of 1 this is `LocalSGD`.
    overlap : float in [0, 1)
        The part of the period in which workers train while a round is exchanged. Their progress
        meanwhile is added to the new center. Uses memory for two more copies of the parameters.

    Raises
    ------
    ConfigurationError
        If an argument is outside its range.

    References
    ----------
    Douillard et al.: DiLoCo: Distributed low-communication training of language models, 2023,
    arXiv 2311.08105, algorithm 1. Overlap: Douillard et al.: Streaming DiLoCo, 2025,
    arXiv 2501.18512; keeping all progress: LOSCAR-SGD, arXiv 2605.20866.
    """

    outer_lr: float = 0.7
    momentum: float = 0.8
    overlap: float = 0.0

    center_state: ClassVar[tuple[CenterState | str, ...]] = (CenterState("m"),)
    step_kernel: ClassVar[str | None] = "outer_nesterov"
    form: ClassVar[Form | None] = Form(
        """
        m := decay * m + d
        c := c + lr * (d + ahead * m)
        """,
        scalars=("lr", "decay", "ahead"),
    )
    period: ClassVar[int] = 20

    def __post_init__(self) -> None:
        require_outer_lr(self.outer_lr)
        require_momentum(self.momentum)
        require_overlap(self.overlap)

    def __repr__(self) -> str:
        more = f", overlap={self.overlap}" if self.overlap else ""
        return f"DiLoCo(outer_lr={self.outer_lr!r}, momentum={self.momentum!r}{more})"

    def step_args(self, part: float) -> tuple[float, ...]:
        return momentum_args(self.outer_lr, self.momentum, part)
