"""Local SGD: all workers continue from the mean of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import require_flag
from platoon_base.rules.forms import Form
from platoon_base.rules.outer import OuterRule, require_overlap

__all__ = ["LocalSGD"]


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
