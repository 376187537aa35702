"""One round of an outer-step rule on one worker: contribute progress, wait for the others, copy the new center."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.base import NonFiniteElement, RoundCenter
from platoon_base.channels.client import ControlClient
from platoon_base.coordination import messages as msg
from platoon_base.errors import ConfigurationError
from platoon_base.rules.outer import OuterRule
from platoon_base.shm.turns import NoTurns, Turns

__all__ = ["make_round", "require_part"]

_MIN_S = 3.0  # for copying the center, even if the wait for the others has used up the timeout


def make_round(
    client: ControlClient,
    center: RoundCenter,
    rule_for: Callable[[int], OuterRule],
    arrays: Sequence[Any],
    part: float,
    timeout_s: float,
    turns: Turns | NoTurns,
    count: Callable[[int], None],
) -> NonFiniteElement | None:
    """Make one outer step together with all workers that synchronize; change ``arrays`` in place.

    A worker whose parameters did not start from the current center, such as one that joined during a round,
    contributes nothing; it continues from the new center like the others.

    Parameters
    ----------
    client : ControlClient
    center : RoundCenter
    rule_for : callable
        Returns the rule for a number of workers.
    arrays : sequence of ndarray
    part : float in [0, 1]
        The fraction of the period that this worker trained; see `platoon_base.rules.outer`.
    timeout_s : float
        Bound on the wait for the others, and on the wait for the center's stripes.
    turns : Turns or NoTurns
        By turns contributions are added in the same order each time.
    count : callable
        Called with the number of the round when ``arrays`` are the new center, still within the turn.

    Returns
    -------
    NonFiniteElement or None
        The first element that was kept out of the center.
    """
    deadline = time.monotonic() + timeout_s
    with turns.take("contribute", timeout_s, center.finish):
        refused = center.contribute(arrays, part, timeout_s)
    met = client.wait_for_all(msg.Round(timeout_s=max(deadline - time.monotonic(), 0.0)), msg.RoundReached)
    left_s = max(deadline - time.monotonic(), min(_MIN_S, timeout_s))
    # All workers pass the same number of workers, whichever of them makes the step on a stripe.
    with turns.take("step", left_s, center.finish):
        stepped = center.take_over(rule_for(len(met.ranks)), arrays, met.number, left_s)
        count(met.number)
    return refused if stepped is None else stepped


def require_part(part: Any) -> None:
    """Raise `ConfigurationError` unless ``part`` is a number in [0, 1]."""
    if not (isinstance(part, (int, float, np.number)) and 0 <= part <= 1):
        raise ConfigurationError(
            f"got part={part!r}: it is the number of batches since the last synchronization over the period, from 0 to "
            "1; leave it out for a whole period"
        )
