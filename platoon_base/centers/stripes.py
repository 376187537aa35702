"""Stripes of a center on the host: pieces of the parameters, locked and updated together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_kernels import Plan
from platoon_base.layout import Piece
from platoon_base.rules.center import Rule
from platoon_base.system.awake import awake

__all__ = [
    "FIRST_PAUSE_S",
    "LONGEST_PAUSE_S",
    "STRIPE_BYTES",
    "Stripe",
    "copy_all",
    "cut",
    "wait_until",
]

Array = np.ndarray[Any, Any]

STRIPE_BYTES = 1 << 21  # Minimum size, large relative to the cost of a lock.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 2e-3  # Pauses between attempts to lock.


class Stripe:
    """One stripe: its pieces of the center, and the `Plan` that updates them."""

    def __init__(
        self,
        index: int,
        pieces: tuple[Piece, ...],
        center: list[Array],
        states: list[list[Array]],
        local_states: list[list[Array]],
        holder: Any,
        trained: int,
        first_moment: int,
    ) -> None:
        self.index = index
        self.holder = holder
        self.pieces = pieces
        # Parameters below ``trained`` use the rule and its states; later ones are moments and use
        # `rule_of_moments`. From ``first_moment`` on, all parameters are moments under any rule.
        self.without_moments = tuple(piece for piece in pieces if piece.parameter < first_moment)
        self.center = cut(center, pieces)
        self._trained = sum(piece.parameter < trained for piece in pieces)
        self.with_states, of_moments = pieces[: self._trained], self.center[self._trained :]
        own, shared = ([cut(state, self.with_states) for state in each] for each in (local_states, states))
        self._plan = Plan(self.center[: self._trained], own, shared) if self._trained else None
        self._moments_plan = Plan(of_moments) if of_moments else None

    def apply(self, rule: Rule, of_moments: Rule, arrays: Sequence[Array]) -> tuple[int, int] | None:
        """Apply both rules once between pieces of the parameters and the center; see `Plan.run`."""
        refused = None if self._plan is None else self._plan.run(rule, arrays[: self._trained])
        if self._moments_plan is None:
            return refused
        behind = self._moments_plan.run(of_moments, arrays[self._trained :])
        return (self._trained + behind[0], behind[1]) if refused is None and behind is not None else refused


def copy_all(targets: Sequence[Array], sources: Sequence[Any]) -> None:
    for target, source in zip(targets, sources):
        np.copyto(target, source)


def cut(arrays: Sequence[Array], pieces: tuple[Piece, ...]) -> list[Array]:
    """Return the pieces of parameters as flat views."""
    return [arrays[p.parameter].reshape(-1)[p.start : p.stop] for p in pieces]


def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Poll ``done``, at growing intervals, until it returns True; return False at the timeout."""
    deadline, pause = awake() + timeout_s, FIRST_PAUSE_S
    while not done():
        if awake() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return True
