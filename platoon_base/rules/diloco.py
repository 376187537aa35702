"""DiLoCo: an outer step with Nesterov momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platoon_base.rules.center import CenterState
from platoon_base.rules.forms import Form
from platoon_base.rules.outer import OuterRule, momentum_args, require_momentum, require_outer_lr, require_overlap

__all__ = ["DiLoCo"]


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
