"""The start of a training on several workers: the steps that all adapters make, in the same order."""

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
    moments: Sequence[Any] = (),
    on_nonfinite: str = "raise",
    once_met: Callable[[list[int]], None] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[int]:
    """Start a training on all workers together; a collective call before the first batch.

    The steps, in this order:

    1. A worker that joined late is refused.
    2. The workers wait for each other, and depend on each other from then on, see `Advanced.meet`.
    3. ``once_met`` is called.
    4. The first worker's values are copied to all others.
    5. A worker that averages gradients while others share by a rule is refused. With a rule, the parameters are shared.
    6. A barrier: no worker changes the center before all have copied it.
    7. The next vote to stop is opened, see `Advanced.stop_votes`.

    Parameters
    ----------
    worker : Worker
    name : str
        The name of this training, the same on all workers, such as ``"main loop 2"``.
    loop : str
        The framework's word for a training, for the error about a late worker, such as ``"main loop"``.
    values : sequence of Variable
        Must be equal on all workers at the start. Parameters that are shared but not among them get the values of
        the worker that shares them first.
    settings : str
        What else must be the same on all workers, such as the rule and its options; compared where there are values.
    rule : Rule or None
        None for averaged gradients.
    parameters : sequence
        The parameters to share by the rule; see `Worker.init_shared_params`.
    moments : sequence
        State of the optimizer to share by the rule; see `Worker.init_shared_params`.
    on_nonfinite : {"raise", "skip", "restore"}
        See `Worker.init_shared_params`.
    once_met : callable, optional
        Called with the participants' ranks; for the adapter's own collective comparisons.
    timeout_s : float
        Bound on each wait for the other workers.

    Returns
    -------
    list of int
        The ranks of the participants.

    Raises
    ------
    ConfigurationError
        If this worker joined late, or an argument is invalid.
    LayoutMismatchError
        On every worker, before anything is changed, if values' shapes or settings differ between workers.
    WorkerLostError, CollectiveTimeoutError
        If a worker does not make the call.
    """
    if worker.late:
        raise ConfigurationError(
            f"this worker joined late: the workers of a {loop} count epochs together from its start; launch the job "
            "with more workers"
        )
    participants = worker.advanced.meet(name, binds=True, timeout_s=timeout_s)
    worker.advanced.announce(bound=True)
    if once_met is not None:
        once_met(participants)
    if values:
        copy_first_values(values, worker, settings, participants, timeout_s=timeout_s)
    if rule is None:
        worker.advanced.begin_averages()
    else:
        worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=on_nonfinite, timeout_s=timeout_s)
    worker.barrier(f"the first batch of {name}", timeout_s=timeout_s)
    worker.advanced.stop_votes.open(worker.advanced.stop_votes.number + 1)
    return participants
