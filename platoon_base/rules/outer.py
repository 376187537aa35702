"""Rules that make an outer step: all workers wait for each other and continue from one center.

One synchronization of all workers is a round. With the center c and the parameters x_i of the N
workers that contribute, a round computes ``d := 1/N sum_i (x_i - c)``, then the outer step
``c := c + step(d)``, then ``x_i := c``. Contributions are added in the order of the ranks, and on
several hosts the sums in the order of the hosts: the bits do not depend on who arrives first. Only
centers in host memory have rounds.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import Array, Rule, State, member
from platoon_base.rules.forms import COMPILED, Form

__all__ = [
    "OuterRule",
    "momentum_args",
    "overlap_of",
    "require_momentum",
    "require_outer_lr",
    "require_overlap",
    "step_form_of",
    "waits",
]


class OuterRule(Rule):
    """Rule with one step of all workers in each round; `sync` is a round of one worker."""

    # With ``overlap``, workers resume as soon as all have contributed. After that part of the
    # period they set ``x_i := c + (x_i - s_i)``, where s_i is their contribution. This is the
    # overlap of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512), except that all
    # progress is kept, as in LOSCAR-SGD (arXiv 2605.20866). `Advanced.complete_round`, or the next
    # synchronization, completes a round. ``every`` is the period in mini-batches, equal on all
    # workers; 0 while it is unknown.
    waits: ClassVar[bool] = True
    overlap = 0.0
    every = 0
    step_kernel: ClassVar[str | None] = None

    _form_is: ClassVar[tuple[str, str, tuple[str, str]]] = "step_kernel", "step", ("d", "c")

    def at_period(self, period: int) -> OuterRule:
        rule = copy.copy(self)
        object.__setattr__(rule, "every", period)
        return rule

    def step_args(self, part: float) -> tuple[float, ...]:
        return ()

    # ``part`` is the length of a round relative to the period, in [0, 1]; less than 1 after the end
    # of an epoch. Full momentum in rounds of a few batches drives the center away.
    def step(self, d: Array, center: Array, center_state: State = (), part: float = 1.0) -> None:
        """Apply the outer step in place; ``d`` is the mean progress and may be overwritten."""
        form: Any = self.form
        form.run((d, center, *center_state), self.step_args(part))

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        self.step(local - center, center, center_state, 1.0)
        local[...] = center


def waits(rule: Any) -> bool:
    return bool(member(rule, "waits"))


def overlap_of(rule: Any) -> float:
    """Return the part of the period in which workers train during an exchange."""
    return float(member(rule, "overlap", OuterRule))


def step_form_of(rule: Any) -> Form | None:
    """Return the form that the loops of a rule's outer step were generated from, or None."""
    kernel = member(rule, "step_kernel", OuterRule)
    form = None if kernel is None else COMPILED.get(kernel)
    if form is None or len(form.center) != len(rule.center_state):
        return None
    return form if not isinstance(rule, OuterRule) or rule.form is form else None


def momentum_args(outer_lr: float, momentum: float, part: float) -> tuple[float, ...]:
    return float(outer_lr), float(momentum) ** part, float(momentum) * part


def require_outer_lr(outer_lr: Any) -> None:
    if not (isinstance(outer_lr, (int, float, np.number)) and 0 < outer_lr < np.inf):
        raise ConfigurationError(
            f"got outer_lr={outer_lr!r}, with which the center would not follow the workers: pass "
            "a number greater than 0, such as 0.7, or 1 for whole steps"
        )


def require_overlap(overlap: Any) -> None:
    if isinstance(overlap, bool) or not (isinstance(overlap, (int, float, np.number)) and 0 <= overlap < 1):
        raise ConfigurationError(
            f"got overlap={overlap!r}: it is the part of the period during which a round is "
            "exchanged, from 0 (workers wait for the round) to less than 1; try 0.25, or 0.5 on "
            "a slower link"
        )


def require_momentum(momentum: Any) -> None:
    if not (isinstance(momentum, (int, float, np.number)) and 0 <= momentum < 1):
        raise ConfigurationError(
            f"got momentum={momentum!r}: outside [0, 1) the center diverges; try 0.8, or 0 for none"
        )
