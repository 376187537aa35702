"""Rules of the second level: how the centers of a job's hosts come together. Pure, like the rules of workers.

Every rule gives a correction to the center of one host, from a copy of that center and the mean of all hosts' copies.
The host adds it to what its center is by then, and to its workers as well, so what they have learned meanwhile stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol

from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import Array, State

__all__ = ["AverageHosts", "DiLoCoHosts", "HostsRule", "hosts_rule"]


class HostsRule(Protocol):
    """A rule of the second level.

    Attributes
    ----------
    states : tuple of str
        Names of the buffers that each host keeps for the rule, shaped like the parameters; the first one starts with
        the center's values, the others with zeros. They are alike on all hosts.
    """

    states: ClassVar[tuple[str, ...]]

    def correction(self, own: Array, mean: Array, state: State) -> Array:
        """Return what the host's center and workers are to move by; changes the states in place.

        Parameters
        ----------
        own : ndarray, shape (n,), a float dtype
            A copy of this host's center.
        mean : ndarray, like ``own``
            The mean of all hosts' copies, each weighted by its number of workers.
        state : tuple of ndarray, each like ``own``
        """
        ...


@dataclass(frozen=True)
class AverageHosts:
    """Move each host toward the mean of all hosts.

    ::

        c_h := c_h + strength (mean - s_h)

    ``s_h`` is the copy of the center ``c_h``. With strength 1 this is federated averaging of the hosts' centers
    (McMahan et al. 2017, arXiv 1602.05629); with less, elastic averaging between them.

    Parameters
    ----------
    strength : float in (0, 1]
    """

    strength: float = 1.0

    states: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise ConfigurationError(f"got strength {self.strength!r}: it must be more than 0 and at most 1")

    def correction(self, own: Array, mean: Array, state: State = ()) -> Array:
        """Return what the host's center and workers are to move by; changes the states in place."""
        moved: Array = mean - own
        if self.strength != 1:
            moved *= own.dtype.type(self.strength)
        return moved


@dataclass(frozen=True)
class DiLoCoHosts:
    """Take an outer step with Nesterov momentum from where all hosts began, and move each host there.

    ::

        g := t - mean                     t: where all began, the outer parameters
        v := momentum v + g
        t := t - lr (g + momentum v)
        c_h := c_h + (t - s_h)

    Parameters
    ----------
    lr : float
        Outer learning rate.
    momentum : float in [0, 1)

    References
    ----------
    Douillard et al. 2023, DiLoCo, arXiv 2311.08105, algorithm 1; here without waiting for workers.
    """

    lr: float = 0.7
    momentum: float = 0.9

    states: ClassVar[tuple[str, ...]] = ("outer", "velocity")

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.momentum < 1):
            raise ConfigurationError(
                f"got lr {self.lr!r} and momentum {self.momentum!r}: lr must be positive, momentum in [0, 1)"
            )

    def correction(self, own: Array, mean: Array, state: State) -> Array:
        """Return what the host's center and workers are to move by; changes the states in place."""
        outer, velocity = state
        scalar = own.dtype.type
        gradient = outer - mean
        velocity *= scalar(self.momentum)
        velocity += gradient
        outer -= scalar(self.lr) * (gradient + scalar(self.momentum) * velocity)
        moved: Array = outer - own
        return moved


_CALL = re.compile(r"(\w+)(?:\(([^()]*)\))?")
_RULES = {"average": AverageHosts, "diloco": DiLoCoHosts}


def hosts_rule(text: str) -> HostsRule:
    """Return the rule that a text names, such as ``average``, ``average(0.5)`` or ``diloco(0.7, 0.9)``.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    found = _CALL.fullmatch(text.strip().lower())
    try:
        if found is None:
            raise ValueError(text)
        numbers = [float(number) for number in (found[2] or "").split(",") if number.strip()]
        rule: HostsRule = _RULES[found[1]](*numbers)
    except (KeyError, ValueError, TypeError) as exc:
        raise ConfigurationError(
            f"got {text!r} as the rule between hosts: it must be average, average(STRENGTH), diloco or "
            "diloco(LR, MOMENTUM)"
        ) from exc
    return rule
