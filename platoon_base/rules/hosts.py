"""Rules between hosts: how the centers of a job's hosts are combined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Union

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import State


@dataclass(frozen=True)
class AverageHosts:
    """Move each host toward the mean of all hosts: ``c_h := c_h + strength (mean - s_h)``."""

    # s_h is the copy of the center c_h. Strength 1 is federated averaging of the centers (McMahan
    # et al. 2017, arXiv 1602.05629), less than 1 is elastic averaging.
    strength: float = 1.0

    states: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise ConfigurationError(f"got strength {self.strength!r}: it must be more than 0 and at most 1")

    def correction(self, own: Array, mean: Array, state: State = ()) -> Array:
        moved: Array = mean - own
        if self.strength != 1:
            moved *= own.dtype.type(self.strength)
        return moved


@dataclass(frozen=True)
class DiLoCoHosts:
    """Take an outer step with Nesterov momentum from the common start, and move each host there."""

    # Douillard et al. 2023, arXiv 2311.08105, algorithm 1, without waiting for workers.
    lr: float = 0.7
    momentum: float = 0.9

    states: ClassVar[tuple[str, ...]] = ("outer", "velocity")

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.momentum < 1):
            raise ConfigurationError(
                f"got lr {self.lr!r} and momentum {self.momentum!r}: lr must be positive, momentum in [0, 1)"
            )

    def correction(self, own: Array, mean: Array, state: State) -> Array:
        outer, velocity = state
        scalar = own.dtype.type
        gradient = outer - mean
        velocity *= scalar(self.momentum)
        velocity += gradient
        outer -= scalar(self.lr) * (gradient + scalar(self.momentum) * velocity)
        moved: Array = outer - own
        return moved


# A rule computes a correction of one host's center from a copy of it and the mean of all hosts'
# copies, weighted by numbers of workers. The host adds it to its current center and workers: later
# progress is kept. Its ``states`` are buffers of each host, equal on all hosts: the first starts
# with the center, the others with 0. `correction` changes them in place.
HostsRule = Union[AverageHosts, DiLoCoHosts]

_CALL = re.compile(r"(\w+)(?:\(([^()]*)\))?")
_RULES = {"average": AverageHosts, "diloco": DiLoCoHosts}


def hosts_rule(text: str) -> HostsRule:
    """Return the rule that a text names, such as ``average(0.5)`` or ``diloco(0.7, 0.9)``."""
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
