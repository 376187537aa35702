"""Outer-step rules: workers train apart from a common start, wait for one another, and go on from a common start.

One synchronization of all workers is a round. With ``c`` the center, from which all began, and ``x_i`` the parameters
of worker i, one of the N workers that take part::

    d := 1/N sum_i (x_i - c)          the mean progress
    c := c + step(d)                  the rule's outer step
    x_i := c

A rule is its outer step, which is element-wise and pure. N are the workers whose progress came: one that died, left,
or joined too late for this round is not among them.

``part`` is the length of a round as a part of the period, in [0, 1]: 1 unless an epoch ended before the period did.
Momentum acts for as long as the round was: ``mu ** part`` stays of it, and ``part`` of its step is made. Full momentum
at rounds of a few batches drives the center away. With ``part = 1`` the equations are the papers'.

With ``overlap`` a worker goes on as soon as all have contributed, and the exchange between hosts takes place while it
trains. After that part of the period it takes over the center, and adds what it has learned since::

    x_i := c + (x_i - s_i)            s_i: what it contributed

That is the overlap of Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512), but all of what was learned meanwhile
stays, as in LOSCAR-SGD (arXiv 2605.20866). In a loop of your own `Advanced.complete_round` does it, or else the next
synchronization; the later, the more the workers drift apart. Before an evaluation a round is completed at once. A
worker keeps two more copies of its parameters.

With ``fragments`` a round takes one contiguous part of the parameters, in turn, as in Streaming DiLoCo; all others stay
as they are. A round follows each so many-th part of the period, see `round_every`, so that each parameter has one round
in a period, and ``part`` is what was trained since. ``overlap`` is at most that part of the period. A synchronization
before an evaluation, ``sync_params(whole=True)``, is a round of each fragment.

Such a rule takes a center in the memory of the host, also where parameters are on devices: the center on devices has
no rounds. Contributions are added in the order of arrival, so with three or more workers the last bits depend on it.
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
    "fragments_of",
    "momentum_args",
    "overlap_of",
    "require_fragments",
    "require_momentum",
    "require_outer_lr",
    "require_overlap",
    "round_every",
    "step_form_of",
    "waits",
]


class OuterRule(Rule):
    """A rule of which all workers make one step together, at the end of each round.

    Its ``form`` is that of the step, and its `sync` a round of one worker. It keeps no local state.

    Attributes
    ----------
    step_kernel : str or None
        Name of the loops that are made from ``form``; None if there is only `step`.
    overlap : float in [0, 1)
        The part of the period in which the workers train on while a round is exchanged.
    fragments : int, at least 1
        In how many parts the parameters are exchanged, one in each round, in turn.
    every : int
        The period in mini-batches, which must be the same on all workers; 0 while it is not known.
    """

    waits: ClassVar[bool] = True
    overlap = 0.0
    fragments = 1
    every = 0
    step_kernel: ClassVar[str | None] = None

    _form_is: ClassVar[tuple[str, str, tuple[str, str]]] = "step_kernel", "step", ("d", "c")

    def at_period(self, period: int) -> OuterRule:
        """Return the rule with its period, which is compared between the workers."""
        rule = copy.copy(self)
        object.__setattr__(rule, "every", period)
        return rule

    def step_args(self, part: float) -> tuple[float, ...]:
        """Return the scalars of the form."""
        return ()

    def step(self, d: Array, center: Array, center_state: State = (), part: float = 1.0) -> None:
        """Apply the outer step once, in place.

        Parameters
        ----------
        d : ndarray, shape (n,)
            The mean progress of the workers, which may be overwritten.
        center : ndarray, shape (n,), of the same float dtype
        center_state : tuple of ndarray, each of shape (n,)
        part : float in [0, 1]
            Length of the round as a part of the period, the mean of the workers'.
        """
        form: Any = self.form
        form.run((d, center, *center_state), self.step_args(part))

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply a round of one worker in place: ``d = x - c``, the outer step, ``x := c``."""
        self.step(local - center, center, center_state, 1.0)
        local[...] = center


def waits(rule: Any) -> bool:
    """Return whether the workers wait for one another at each synchronization by this rule."""
    return bool(member(rule, "waits"))


def overlap_of(rule: Any) -> float:
    """Return the part of the time from one round to the next in which the workers train on while one is exchanged."""
    return float(member(rule, "overlap", OuterRule)) * fragments_of(rule)


def fragments_of(rule: Any) -> int:
    """Return in how many parts the parameters are exchanged by this rule, one in each round."""
    return int(member(rule, "fragments", OuterRule))


def round_every(rule: Any, period: int) -> int:
    """Return the batches from one round to the next: the period, in which each parameter has its turn, by fragments.

    Raises
    ------
    ConfigurationError
        If the period has fewer batches than there are fragments.
    """
    fragments = fragments_of(rule)
    if period < fragments:
        raise ConfigurationError(
            f"got {rule!r} and a period of {period} batch{'' if period == 1 else 'es'}: a round follows each "
            f"1/{fragments} of it; synchronize every {fragments} batches or more, or have fewer fragments"
        )
    return period // fragments


def step_form_of(rule: Any) -> Form | None:
    """Return the form from which the loops of a rule's outer step were made; None if NumPy makes it."""
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
            f"got outer_lr={outer_lr!r}: the center would not follow the workers; give a number greater than 0, "
            "such as 0.7, or 1 for whole steps"
        )


def require_overlap(overlap: Any, fragments: int = 1) -> None:
    if isinstance(overlap, bool) or not (isinstance(overlap, (int, float, np.number)) and 0 <= overlap < 1):
        raise ConfigurationError(
            f"got overlap={overlap!r}: it is the part of the period in which a round may be exchanged, from 0, for "
            "rounds that are waited for, to less than 1; try 0.25, or 0.5 on a slower link"
        )
    if overlap * fragments > 1 + 1e-9:
        digits = 10 ** (3 + len(str(fragments)))
        raise ConfigurationError(
            f"got overlap={overlap} and fragments={fragments}: a round follows each 1/{fragments} of the period, "
            f"and the one before is completed by then; give at most {digits // fragments / digits}"
        )


def require_fragments(fragments: Any, moments: bool = False) -> None:
    whole = isinstance(fragments, (int, np.integer)) and not isinstance(fragments, bool)
    if not whole or fragments < 1:
        raise ConfigurationError(
            f"got fragments={fragments!r}: it is the number of parts in which the parameters are exchanged in turn, 1 "
            "for all at once; try 4"
        )
    if moments and fragments > 1:
        raise ConfigurationError(
            f"got moments=True and fragments={fragments}: the moments of a parameter would be averaged in another "
            "round than the parameter; leave one of them out"
        )


def require_momentum(momentum: Any) -> None:
    if not (isinstance(momentum, (int, float, np.number)) and 0 <= momentum < 1):
        raise ConfigurationError(
            f"got momentum={momentum!r}: outside [0, 1) the center swings ever farther; try 0.8, or 0 for none"
        )
