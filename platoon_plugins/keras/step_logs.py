"""Values that a user's ``train_step`` or ``test_step`` puts into ``logs`` under its own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.worker import warn_once

__all__ = ["is_of_own_step", "over_all_workers"]

Array = np.ndarray[Any, Any]


def is_of_own_step(logs: Mapping[str, Any], results: Mapping[str, Any]) -> bool:
    """Return whether a step has returned ``logs``, with names that are not those of metrics."""
    return bool(logs) and set(logs) != set(results)


def over_all_workers(
    logs: Mapping[str, Any],
    names: int,
    own: Mapping[str, Any],
    total: Mapping[str, Any],
    add_up: Callable[[list[Array]], list[Array]],
) -> dict[str, Any]:
    """Return the values of ``logs`` over the data of all workers; a collective call."""
    # A value that equals a metric's result on every worker becomes that metric over all data;
    # another number becomes the mean over the workers. `logs` is empty without a batch.
    metrics = sorted(own)
    matches, numbers = np.zeros((names, len(metrics))), np.zeros(names)
    for i, name in enumerate(sorted(logs)):
        matches[i] = [_is_same(logs[name], own[metric]) for metric in metrics]
        numbers[i] = float(logs[name]) if _is_number(logs[name]) else np.nan
    on_all, sums, workers = add_up([matches, numbers, np.array(float(bool(logs)))])
    values: dict[str, Any] = {}
    averaged = []
    for name, counts, number in zip(sorted(logs), on_all, sums):
        found = [metric for metric, count in zip(metrics, counts) if count == workers]
        if found:
            values[name] = total[name if name in found else found[0]]
        elif _is_number(logs[name]):
            values[name] = float(number / workers)
            averaged.append(name)
        else:
            raise ConfigurationError(
                f"got {name!r} in the logs of an epoch, a {type(logs[name]).__name__} of which no metric of the model "
                "keeps track: only a number can be averaged over the workers; let the step update a metric "
                "(self.metrics) and return its result"
            )
    if averaged:
        warn_once(
            f"got {', '.join(map(repr, averaged))} in the logs of an epoch, of which no metric of the model keeps "
            "track: the value is the mean of those of each worker's last batch; for one over all rows let the step "
            "update a metric (self.metrics) and return its result"
        )
    return values


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and isinstance(value, (int, float, np.number, np.ndarray))


def _is_same(value: Any, result: Any) -> bool:
    """Return whether two values agree up to the rounding of a compiled program."""
    if isinstance(value, Mapping) or np.shape(value) != np.shape(result):
        return False
    return bool(np.allclose(value, result, rtol=1e-5, atol=0, equal_nan=True))
