"""GoSGD: workers send parameters to each other at random, and there is no center."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import LocalState, Rule, number_of, require_number
from platoon_base.rules.forms import Form


@dataclass(frozen=True)
class GoSGD(Rule):
    """Gossip: at random, a worker sends its parameters and half of its weight to another worker.

    Worker i has the weight ``w_i``, initially 1/N. At each synchronization it merges the parameters
    it has received. With the given probability it then sends to a random other worker j::

        x_i := (w_i x_i + sum w x) / (w_i + sum w)        over the received (w, x)
        w_i := w_i + sum w
        w_i := w_i / 2,   send (w_i, x_i) to j

    The weights of all workers and of all messages in flight add up to 1. Without gradients, the
    weighted mean of all parameters does not change. A worker waits for another no longer than for a
    copy.

    This mean, the consensus, is validated, saved, and left in the model. The weight of a worker
    that dies is lost. A worker that leaves in order passes its weight to another. A worker that
    joins receives half of a worker's weight and a copy of its parameters. Each of the first N
    workers starts with the initial values and weight 1/N, however late it starts: use a barrier
    before training if some start much later. The optimizer's moments are not shared.

    Received parameters are merged on arrival in the receiver's shared memory. There ``c`` is the
    mean of the worker's last parameters ``x_old``, whose weight in it is ``part``, and of all
    received since::

        c := c + part (x - x_old)
        x := c
        x_old := c

    Parameters on devices are copied through host memory.

    In a job on several hosts it is refused: use `LocalSGD` or `EASGD`.

    Parameters
    ----------
    probability : float in (0, 1]
        Probability of sending at a synchronization, which by default is every mini-batch.
    seed : int, at least 0
        Seed of the random choices, combined with the rank; it may differ between workers.

    Raises
    ------
    ConfigurationError
        If a value is outside its range.

    References
    ----------
    Blot, Picard, Cord, Thome: Gossip training for deep learning, 2016, arXiv 1611.09726,
    algorithm 1.
    """

    probability: float = 0.01
    seed: int = field(default=0, metadata={"per_worker": True})
    part: float = field(default=1.0, repr=False)

    period: ClassVar[int] = 1
    gossips: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "gosgd"
    local_state: ClassVar[tuple[LocalState | str, ...]] = (LocalState("x_old"),)
    form: ClassVar[Form | None] = Form(
        """
        c := c + part * (x - x_old)
        x := c
        x_old := c
        """,
        scalars=("part",),
    )

    def __post_init__(self) -> None:
        require_number("probability", self.probability, 0 < number_of(self.probability) <= 1, "(0, 1]", "0.01")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ConfigurationError(f"got seed={self.seed!r}: it must be a whole number, 0 or more; or leave it out")

    def with_part(self, part: float) -> GoSGD:
        """Return the rule with ``part``, the weight of the worker's earlier parameters."""
        return replace(self, part=part)

    def kernel_args(self) -> tuple[float, ...]:
        return (float(self.part),)
