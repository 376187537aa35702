"""DiLoCo: an outer step with Nesterov momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platoon_base.rules.center import CenterState
from platoon_base.rules.forms import Form
from platoon_base.rules.outer import (
    OuterRule,
    momentum_args,
    require_fragments,
    require_momentum,
    require_outer_lr,
    require_overlap,
)

__all__ = ["DiLoCo"]


@dataclass(frozen=True, repr=False)
class DiLoCo(OuterRule):
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
    overlap : float in [0, 1)
        The part of the period in which the workers train on while a round is exchanged; see
        `platoon_base.rules.outer`.
    fragments : int, at least 1
        In how many parts the parameters are exchanged, one in each round, in turn; likewise.

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
    overlap: float = 0.0
    fragments: int = 1

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
        require_fragments(self.fragments)
        require_overlap(self.overlap, self.fragments)

    def __repr__(self) -> str:
        """Return it as a script writes it."""
        more = f", overlap={self.overlap}" if self.overlap else ""
        more += f", fragments={self.fragments}" if self.fragments > 1 else ""
        return f"DiLoCo(outer_lr={self.outer_lr!r}, momentum={self.momentum!r}{more})"

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return ``outer_lr``, what is left of m, and the part of m in the step."""
        return momentum_args(self.outer_lr, self.momentum, part)
