"""The methods that `platoon tune` compares, and the values that their runs report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from platoon_base.cli.history import higher_is_better, is_loss, is_validation
from platoon_base.errors import ConfigurationError
from platoon_base.rules import (
    CenterMomentum,
    Rule,
    default_period,
    default_rule,
    parse_rule,
    settings_of,
)

__all__ = ["Method", "Point", "Watched", "built_in", "guess", "read_method", "value_at"]

_METHOD = re.compile(r"(?P<rule>.*?)\s*(?:\bevery\s+(?P<period>\d+))?", re.DOTALL)


class Method(NamedTuple):
    """A way to run the script. Without rule and period it is the script's own."""

    workers: int
    rule: str = ""
    period: int | None = None
    words: tuple[str, ...] = ()  # extra arguments of the script

    @property
    def name(self) -> str:
        """The method's name in the table."""
        if self.words:
            return f"the script with {' '.join(self.words)}"
        return f"{self.rule} every {self.period}" if self.rule else "plain, one worker"

    @property
    def plain(self) -> bool:
        """Whether it is the plain script on one worker."""
        return not self.rule and not self.words


class Watched(NamedTuple):
    """The reported value to compare."""

    name: str
    higher: bool  # whether higher is better

    def cost(self, value: float) -> float:
        """Return a number to minimize; NaN becomes infinity."""
        return math.inf if math.isnan(value) else -value if self.higher else value

    def finite(self, value: float) -> float:
        """Return a value to compare; NaN becomes the worst infinity."""
        return -self.cost(value) if self.higher else self.cost(value)


class Point(NamedTuple):
    """A reported value after so many steps of each worker and seconds of training."""

    steps: float
    seconds: float
    value: float


def built_in(workers: int) -> list[Method]:
    """Return all built-in methods: plain training, the default, then the others by difference."""
    period = default_period()
    gain = CenterMomentum().resolved(workers).gain or 1.0
    texts = [(_text_of(default_rule(period)), period), ("AveragedEASGD()", 1)]
    texts += [("CenterMomentum()", 10), ("DiLoCo()", 20)]
    texts += [("CenterMomentum()", 4), ("CenterMomentum()", 30)]
    texts += [(f"CenterMomentum(gain={gain * factor:.2g})", 10) for factor in (0.5, 1.5)]
    texts += [("EASGD()", 10), ("EASGD()", 4)]
    return [Method(1), *(Method(workers, *each) for each in dict.fromkeys(texts))]


def read_method(text: str, workers: int) -> Method:
    """Parse a method: a rule, "every" and a number of batches, or one of the two."""
    found = _METHOD.fullmatch(text.strip())
    rule, period = (found["rule"], found["period"]) if found else ("", None)
    if not rule and period is None:
        example = '"EASGD(alpha=0.2) every 4"'
        forms = f"write a rule, a period, or both, such as {example}"
        raise ConfigurationError(f"got the method {text!r}: {forms}")
    every = None if period is None else int(period)
    named = parse_rule(rule, "--method") if rule else default_rule(every)
    every = default_period(named) if every is None else every
    if every < 1:
        reason = "the period counts batches and must be at least 1"
        raise ConfigurationError(f"got the method {text!r}: {reason}")
    return Method(workers, _text_of(named), every)


def _text_of(rule: Rule) -> str:
    kind = type(rule)
    return f"{kind.__name__}()" if rule == kind() else settings_of(rule)


def guess(names: Iterable[str], wanted: str | None = None) -> Watched:
    """Choose the value to compare: the one the user wants, or a validation loss if there is one."""
    names = list(names)
    if wanted is None:
        best = max(names, key=lambda name: (is_validation(name), is_loss(name)))
        return Watched(best, higher_is_better(best))
    has_direction = wanted.endswith((":max", ":min"))
    name = wanted[:-4] if has_direction else wanted
    if name not in names:
        known = f"the script reports {', '.join(names)}"
        raise ConfigurationError(f"got --watch {wanted}, but {known}: name one of these")
    return Watched(name, wanted.endswith(":max") if has_direction else higher_is_better(name))


def value_at(points: Sequence[Point], at: float, by: str) -> Point | None:
    """Return the interpolated point at a number of steps or seconds; None before the first."""
    if not points or getattr(points[0], by) > at:
        return None
    axis = [getattr(point, by) for point in points]
    return Point(*(float(np.interp(at, axis, column)) for column in zip(*points)))
