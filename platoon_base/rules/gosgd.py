"""GoSGD: workers send their parameters to one another at random, and there is no center."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import LocalState, Rule, number_of, require_number
from platoon_base.rules.forms import Form

__all__ = ["GoSGD"]


@dataclass(frozen=True)
class GoSGD(Rule):
    """Gossip: now and then a worker sends its parameters, with half of its weight, to another one.

    Worker i has the weight ``w_i``, at first 1/N. At each synchronization it merges what it has received, and then,
    with the given probability, sends to a worker j that it draws among the others::

        x_i := (w_i x_i + sum w x) / (w_i + sum w)        over the received (w, x)
        w_i := w_i + sum w
        w_i := w_i / 2,   send (w_i, x_i) to j

    The weights of all workers and of what is on the way add up to 1, and without gradients the mean of all parameters,
    by these weights, stays the same. No worker waits for another one longer than for a copy.

    That mean, the consensus, is validated, saved, and left in the model. The weight of a worker that dies is
    lost: the mean is that of the others. A worker that leaves in order gives its weight to another one, and one that
    joins takes half of a worker's weight, with a copy of its parameters. Each of the N workers that a job starts with
    begins at the first values with its 1/N, however late it comes: let them wait for one another before they train if
    some start much later. The moments of optimizers stay local.

    Received parameters are merged where they arrive, in the memory that each worker has for all of them. There ``c`` is
    the mean of the worker's parameters ``x_old``, when it was here last, and of what has come since; ``part`` is the
    weight of the former in it::

        c := c + part (x - x_old)
        x := c
        x_old := c

    Parameters on devices pass through the memory of the host.

    In a job on several hosts a worker draws among the workers of all of them. A process of its own, the courier, sends
    what is for one of another host, while the worker trains on. The link to each host carries one message at a time:
    while one is under way, workers that draw that host keep their weight, and send nothing. The consensus of all
    hosts is that of the latest `Worker.average_hosts`, which the adapters call before they evaluate; once a worker has
    trained on, it reads that of its own host. Weights only count by their ratios: those of a host that is lost are
    lost, and one that returns has the weight again with which it began.

    Parameters
    ----------
    probability : float in (0, 1]
        Of sending at a synchronization, by default at every mini-batch.
    seed : int, at least 0
        Of the random choices, together with the rank; it may differ between workers.

    Raises
    ------
    ConfigurationError
        If a value is outside its range.

    References
    ----------
    Blot, Picard, Cord, Thome: Gossip training for deep learning, 2016, arXiv 1611.09726, algorithm 1.
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
            raise ConfigurationError(f"got seed={self.seed!r}: it must be a whole number from 0 on; leave it out")

    def with_part(self, part: float) -> GoSGD:
        """Return the rule for what this worker's earlier parameters weigh in the merged ones."""
        return replace(self, part=part)

    def kernel_args(self) -> tuple[float, ...]:
        """Return part."""
        return (float(self.part),)
