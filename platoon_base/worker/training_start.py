"""The begin of a training that several workers make together, in the one order that holds for all adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import Rule
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import Variable, copy_first_values
from platoon_base.worker.timeout import DEFAULT_TIMEOUT_S

__all__ = ["start_training"]


def start_training(
    worker: Worker,
    name: str,
    loop: str,
    *,
    values: Sequence[Variable] = (),
    settings: str = "",
    rule: Rule | None = None,
    parameters: Sequence[Any] = (),
    on_nonfinite: str = "raise",
    once_met: Callable[[list[int]], None] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[int]:
    """Begin a training on all workers together; each of them calls it, before its first batch.

    The steps, in this order:

    1. A worker that joined late is refused.
    2. The workers meet. From then on they need each other, see `Advanced.meet`.
    3. ``once_met`` is called.
    4. The first worker's values go to all others.
    5. With a rule, the parameters are shared.
    6. The workers wait for one another: nobody moves the center before all have taken it over.
    7. The next vote to stop is opened, see `Advanced.stop_votes`.

    Parameters
    ----------
    worker : Worker
    name : str
        Of this training, the same on all workers, such as ``"main loop 2"``.
    loop : str
        What this framework calls a training, for the error about a late worker, such as ``"main loop"``.
    values : sequence of Variable
        What must be the same on all workers at the begin. Parameters that are shared but not among them take over
        the values of whichever worker shares them first.
    settings : str
        What else must be the same on all workers, such as the rule and its options; compared where there are values.
    rule : Rule or None
        None for averaged gradients.
    parameters : sequence
        What the rule keeps together; see `Worker.init_shared_params`.
    on_nonfinite : {"raise", "skip", "restore"}
        See `Worker.init_shared_params`.
    once_met : callable, optional
        Gets the ranks that have met. It makes the collective comparisons that are the adapter's own.
    timeout_s : float
        Bound on each wait for the other workers.

    Returns
    -------
    list of int
        The ranks that have met.

    Raises
    ------
    ConfigurationError
        If this worker joined late, or something in the arguments cannot work.
    LayoutMismatchError
        On every worker, before anything is changed, if the values of one are others, or its settings are.
    WorkerLostError, CollectiveTimeoutError
        If a worker does not come.
    """
    if worker.late:
        raise ConfigurationError(
            f"this worker joined late: the workers of a {loop} count epochs together from its begin; launch the job "
            "with more workers"
        )
    participants = worker.advanced.meet(name, binds=True, timeout_s=timeout_s)
    worker.advanced.announce(bound=True)
    if once_met is not None:
        once_met(participants)
    if values:
        copy_first_values(values, worker, settings, participants, timeout_s=timeout_s)
    if rule is not None:
        worker.init_shared_params(parameters, rule, on_nonfinite=on_nonfinite, timeout_s=timeout_s)
    worker.barrier(f"the first batch of {name}", timeout_s=timeout_s)
    worker.advanced.stop_votes.open(worker.advanced.stop_votes.number + 1)
    return participants
