"""What the loops of `prepare` have in common, in PyTorch and of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.parameters import Parameters
from platoon_base.rules.center import Rule
from platoon_base.system.warn import warn_once
from platoon_base.worker.handle import Worker

__all__ = ["begins_anew", "center_is_on_device", "require_weight", "warn_if_alike"]


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
