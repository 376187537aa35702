"""Synchronization rules: how a worker's parameters and the shared center change each other.

A rule is element-wise and pure: arrays in, arrays changed, no lock, socket or framework inside. It may therefore
run block by block and stripe by stripe, and an update torn by a crash is still a valid one, element by element.

A rule's ``sync`` is its plain NumPy form and the oracle of all others. A rule that names a ``kernel`` has a fused
one-pass form too (see `platoon_base.centers.host_kernels`), which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from platoon_base.errors import ConfigurationError

__all__ = [
    "ASGD", "EASGD", "Adopt", "Array", "Rule", "State", "end_momentum", "local_sources", "momenta", "require_rule",
    "settings_of",
]  # fmt: skip

Array = np.ndarray[Any, Any]
State = tuple[Array, ...]
_LONGEST_SETTINGS = 500


class Rule(Protocol):
    """A synchronization rule.

    Attributes
    ----------
    kernel : str or None
        Name of the fused form in `platoon_base.centers.host_kernels`, or None if there is only the NumPy form.
    local_state : tuple of str
        Names of the extra buffers that each worker keeps for the rule, each shaped like the parameters. One that has
        the name of a center state starts with that one's values, any other with the center's.
    center_state : tuple of str
        Names of the extra buffers that lie beside the center, started with zeros.
    period : int, optional
        Batches from one synchronization to the next where the user does not say; 10 without it.
    """

    kernel: ClassVar[str | None]
    local_state: ClassVar[tuple[str, ...]]
    center_state: ClassVar[tuple[str, ...]]

    def resolved(self, size: int) -> Rule:
        """Return the rule with its defaults filled in for a job of ``size`` workers."""
        ...

    def kernel_args(self) -> tuple[float, ...]:
        """Return the scalar arguments of the fused form."""
        ...

    def sync(self, local: Array, center: Array, local_state: State, center_state: State) -> None:
        """Apply the rule once, in place.

        Parameters
        ----------
        local, center : ndarray, shape (n,), same float dtype
        local_state, center_state : tuple of ndarray, each of shape (n,)
        """
        ...


@dataclass(frozen=True)
class EASGD:
    """Elastic averaging: a spring pulls worker and center towards each other.

    ::

        d := alpha (x - c)
        x := x - d
        c := c + d

    Both sides use the values before the synchronization, so ``x + c`` stays what it was.

    N workers at one worker's learning rate learn little sooner than one. With a rate N times as large and a period of
    1, or twice as large and a period of 4, they do: docs/learning.md has the measurements.

    Parameters
    ----------
    alpha : float in (0, 1], optional
        Strength of the spring. The default is ``0.9 / N`` for a job of N workers: the paper's beta = N alpha = 0.9.

    Raises
    ------
    ConfigurationError
        If alpha is outside (0, 1].

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, equations 5 and 6.
    """

    alpha: float | None = None

    kernel: ClassVar[str | None] = "easgd"
    local_state: ClassVar[tuple[str, ...]] = ()
    center_state: ClassVar[tuple[str, ...]] = ()
    period: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if self.alpha is not None and not (isinstance(self.alpha, (int, float, np.number)) and 0 < self.alpha <= 1):
            raise ConfigurationError(
                f"got alpha={self.alpha!r}: outside (0, 1] the worker and the center drive each other apart; "
                "leave it out for 0.9 / N, or try 0.5"
            )

    def resolved(self, size: int) -> EASGD:
        """Fill in ``alpha = 0.9 / size`` if no alpha was given."""
        return self if self.alpha is not None else replace(self, alpha=0.9 / size)

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``(alpha,)``."""
        if self.alpha is None:
            raise ConfigurationError(
                "alpha is not known yet: it is 0.9 / N by default; call resolved(N) first, or give alpha"
            )
        return (float(self.alpha),)

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the equations above in place."""
        (alpha,) = self.kernel_args()
        d = local.dtype.type(alpha) * (local - center)
        local -= d
        center += d


@dataclass(frozen=True)
class ASGD:
    """Asynchronous SGD, as in Downpour: the worker adds its progress to the center and takes the center over.

    ::

        c := c + (x - x_old)
        x := c
        x_old := c

    ``x_old`` is the center as this worker saw it last. With one worker nothing changes but rounding.

    References
    ----------
    Dean et al.: Large scale distributed deep networks, NIPS 2012, section 4.1 (here: whole updates, not gradients).
    """

    kernel: ClassVar[str | None] = "asgd"
    local_state: ClassVar[tuple[str, ...]] = ("x_old",)
    center_state: ClassVar[tuple[str, ...]] = ()

    def resolved(self, size: int) -> ASGD:
        """Return the rule itself: it has no parameter."""
        return self

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``()``."""
        return ()

    def sync(self, local: Array, center: Array, local_state: State, center_state: State = ()) -> None:
        """Apply the equations above in place; ``local_state = (x_old,)``."""
        (x_old,) = local_state
        center += local - x_old
        local[...] = center
        x_old[...] = center


class Adopt:
    """Stands in for a rule while a job has one worker, so that this worker trains as the plain script does.

    ::

        m := 0 where c != x       (momentum: a center state that no local state follows)
        c := x
        x_old := x                (if the rule remembers the center)

    The center is for checkpoints and for workers that join late. When one has joined, the rule takes over. Local states
    that follow a center state stay what they are, as that one does. Momentum that a resumed job has brought along would
    carry the center off once a second worker joins: it has nothing to do with where the center is by then.

    Parameters
    ----------
    rule : Rule
        The rule that it stands in for. Its local state is kept up to date.
    """

    kernel: str
    local_state: tuple[str, ...]
    center_state: tuple[str, ...]

    def __init__(self, rule: Rule) -> None:
        self.local_state, self.center_state = rule.local_state, rule.center_state
        self._remembering = [source is None for source in local_sources(rule)]
        self._momenta = momenta(rule)
        self.kernel = "adopt_remembering" if any(self._remembering) else "adopt"

    @property
    def sets(self) -> tuple[int, int]:
        """The local states that remember the center, and the momenta, as sets of bits: bit j is state j of all."""
        remembering = sum(1 << j for j, remembers in enumerate(self._remembering) if remembers)
        return remembering, sum(1 << len(self.local_state) + i for i in self._momenta)

    def resolved(self, size: int) -> Adopt:
        """Return the rule itself: it has no parameter."""
        return self

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``()``."""
        return ()

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the equations above in place."""
        end_momentum([center_state[i] for i in self._momenta], center, local)
        center[...] = local
        for array, remembers in zip(local_state, self._remembering):
            if remembers:
                array[...] = local


def local_sources(rule: Rule) -> list[int | None]:
    """Return for each local state the index of the center state that it starts with; None for the center's values."""
    names = rule.center_state
    return [names.index(name) if name in names else None for name in rule.local_state]


def momenta(rule: Rule) -> list[int]:
    """Return the indices of the center states that no local state follows: the momentum of the center."""
    return [i for i in range(len(rule.center_state)) if i not in local_sources(rule)]


def end_momentum(momentum: Sequence[Array], center: Array, new: Array) -> None:
    """Set momentum to 0 wherever ``center`` is about to be given a ``new`` value that no synchronization led to."""
    if momentum:
        changed = center != new
        for state in momentum:
            np.copyto(state, 0, where=changed)


def require_rule(rule: Any, argument: str = "rule") -> None:
    """Raise `ConfigurationError` unless ``rule`` is a rule.

    Parameters
    ----------
    rule : Rule
        The user's argument; None is no rule.
    argument : str
        Name of the argument, for the error.
    """
    if isinstance(rule, type) or not callable(getattr(rule, "resolved", None)):
        raise ConfigurationError(f"got {argument}={rule!r}: pass a rule, such as EASGD() or ASGD()")


def settings_of(rule: Rule) -> str:
    """Return a rule with its arguments as text, such as ``EASGD(alpha=0.45)``; empty if the rule does not tell them."""
    return repr(rule)[:_LONGEST_SETTINGS] if is_dataclass(rule) else ""
