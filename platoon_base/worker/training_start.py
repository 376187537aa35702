"""The start of a training on several workers, of loops and of the adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import Variable, copy_first_values


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
    """Start a training on all workers together; return the ranks of the participants.

    A collective call before the first batch. Its steps:

    1. It raises `ConfigurationError` on a worker that joined late.
    2. The workers wait for each other, and depend on each other from then on, see `Advanced.meet`.
    3. ``once_met`` is called with the ranks, for the adapter's own collective comparisons.
    4. The first worker's ``values`` are copied to all others, if shapes and ``settings`` are equal.
    5. With a rule, the ``parameters`` are shared; else gradients are averaged. All must agree.
    6. A barrier: no worker changes the center before all have copied it.
    7. The next vote to stop is opened, see `Advanced.stop_votes`.

    ``name`` is the same on all workers; ``loop`` is the framework's word for a training.
    """
    if worker.late:
        raise ConfigurationError(
            f"this worker joined late, and the workers of a {loop} count epochs together from its "
            "start; launch the job with more workers"
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


def begins_anew(loop: Any, worker: Worker, settings: Any, trains: bool) -> bool:
    """Return whether a call of `prepare` begins another loop; ``trains`` if it has more than loaders."""
    if loop is None or loop.worker is not worker or (loop.begun and trains):
        if worker.late:
            raise ConfigurationError(
                "this worker joined late, and the workers of a loop count passes together from "
                "its start: launch the job with more workers"
            )
        return True
    if loop.settings != settings:
        raise ConfigurationError(
            f"got prepare with {settings} after one with {loop.settings}: pass equal settings in all calls for one loop"
        )
    return False


def require_weight(weight: float) -> float:
    """Return a weight as a float; raise `ConfigurationError` if it is negative or not finite."""
    number = float(weight)
    if not (math.isfinite(number) and number >= 0):
        raise ConfigurationError(f"got weight {weight}: pass the number of this worker's rows, 0 or more")
    return number


def warn_if_alike(marks: Sequence[int], rank: int) -> None:
    """Warn on rank 0 if the first gradients have equal checksums; 0 if they are all zeros."""
    if marks[0] and len(marks) > 1 and len(set(marks)) == 1 and not rank:
        warn_once(
            f"the first gradients are equal on all {len(marks)} workers, so each trains on the same rows: "
            "pass the loader to prepare too, or divide the rows with worker.shard"
        )


def center_is_on_device(worker: Worker, parameters: Sequence[Any], rule: Rule) -> bool:
    """Return whether a center of these parameters would lie in the memory of devices."""
    centers = worker.advanced.centers
    return centers is not None and centers(Parameters(parameters), rule).location == "device"
