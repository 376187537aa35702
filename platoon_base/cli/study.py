"""The comparison of `platoon tune`, without I/O: methods, the values that runs reported, and the choice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from platoon_base.cli.value_names import higher_is_better, is_loss, is_validation
from platoon_base.errors import ConfigurationError
from platoon_base.rules import CenterMomentum, Rule, default_period, default_rule, parse_rule, settings_of

__all__ = [
    "Drop",
    "Method",
    "Outcome",
    "Point",
    "Trial",
    "Watched",
    "built_in",
    "choose",
    "common_end",
    "few",
    "guess",
    "number",
    "outcomes",
    "read_method",
    "value_at",
]

_METHOD = re.compile(r"(?P<rule>.*?)\s*(?:\bevery\s+(?P<period>\d+))?", re.DOTALL)


class Method(NamedTuple):
    """A way to run the script: number of workers, rule, period and arguments.

    Attributes
    ----------
    workers : int
    rule : str
        The rule as text; empty for the script's own.
    period : int or None
        Batches from one synchronization to the next; None for the script's own.
    words : tuple of str
        Extra arguments of the script.
    """

    workers: int
    rule: str = ""
    period: int | None = None
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The method's name in the table."""
        if self.words:
            return f"the script with {' '.join(self.words)}"
        return f"{self.rule} every {self.period}" if self.rule else "plain, one worker"

    @property
    def plain(self) -> bool:
        """Whether it is the plain script, on one worker."""
        return not self.rule and not self.words


class Watched(NamedTuple):
    """The reported value to compare, and whether higher is better."""

    name: str
    higher: bool

    @property
    def sign(self) -> float:
        """The factor that turns the value into one to minimize."""
        return -1.0 if self.higher else 1.0


class Point(NamedTuple):
    """A reported value, with the steps per worker and the seconds of training up to it."""

    steps: float
    seconds: float
    value: float


class Drop(NamedTuple):
    """Why a method is not run further.

    Attributes
    ----------
    point : Point
        Where it was compared: its steps, seconds and value.
    better : dict of str to float
        The methods that had better values at that moment, by name.
    keep : int
        How many methods go on from there.
    """

    point: Point
    better: Mapping[str, float]
    keep: int


class Trial(NamedTuple):
    """A run of one method.

    Attributes
    ----------
    curves : mapping of str to list of Point
        The reported numbers by name, in order.
    failed : str
        Why there is nothing to compare; empty otherwise.
    rule : str
        The rule in use, as reported by the workers; empty if they shared no parameters.
    steps, syncs : float
        Steps and synchronizations per worker, at the latest report.
    dropped : Drop or None
        Why the method was dropped in or after this run.
    """

    method: Method
    seed: int
    curves: Mapping[str, list[Point]]
    failed: str = ""
    rule: str = ""
    steps: float = 0.0
    syncs: float = 0.0
    dropped: Drop | None = None


class Outcome(NamedTuple):
    """All runs of one method, up to the budget.

    Attributes
    ----------
    values : list of float
        The value at the budget, of each run that did not fail; NaN counts as the worst infinity.
    value, steps, seconds : float
        The medians of the values, and of the steps and seconds of these.
    reached : float
        Median steps (or seconds, if the budget is in seconds) after which it was as good as plain training at its end;
        infinity if most runs never were.
    failed : list of str
    dropped : Drop or None
        Why the method was dropped; then its values are those it had at that moment.
    """

    method: Method
    values: list[float]
    value: float
    steps: float
    seconds: float
    reached: float
    failed: list[str]
    dropped: Drop | None = None


def few(workers: int) -> list[Method]:
    """Return the methods to try by default: plain training, the adapters' default, and two that differ most from it."""
    return [Method(1), *built_in(workers)[1:4]]


def built_in(workers: int) -> list[Method]:
    """Return all methods to try on request; plain training and the adapters' default come first."""
    period = default_period()
    gain = CenterMomentum().resolved(workers).gain or 1.0
    texts = [(_text_of(default_rule(period)), period), ("AveragedEASGD()", 1), ("CenterMomentum()", 10)]
    texts += [("DiLoCo()", 20), ("CenterMomentum()", 4), ("CenterMomentum()", 30)]
    texts += [(f"CenterMomentum(gain={gain * factor:.2g})", 10) for factor in (0.5, 1.5)]
    texts += [("EASGD()", 10), ("EASGD()", 4)]
    return [Method(1), *(Method(workers, *each) for each in dict.fromkeys(texts))]


def read_method(text: str, workers: int) -> Method:
    """Parse a method of the user: a rule, ``every`` and a number of batches, or one of the two.

    Raises
    ------
    ConfigurationError
        If the text does not have this form, or names no rule.
    """
    found = _METHOD.fullmatch(text.strip())
    rule, period = (found["rule"], found["period"]) if found else ("", None)
    if not rule and period is None:
        raise ConfigurationError(
            f'got the method {text!r}: write a rule, a period, or both, such as "EASGD(alpha=0.2) every 4"'
        )
    named = parse_rule(rule, "--method") if rule else default_rule(None if period is None else int(period))
    every = default_period(named) if period is None else int(period)
    if every < 1:
        raise ConfigurationError(f"got the method {text!r}: the period counts batches and must be at least 1")
    return Method(workers, _text_of(named), every)


def _text_of(rule: Rule) -> str:
    """Return a rule as Python source."""
    kind = type(rule)
    return f"{kind.__name__}()" if rule == kind() else settings_of(rule)


def guess(names: Iterable[str], wanted: str | None = None) -> Watched:
    """Choose the value to compare: by default a validation loss, if there is one.

    Parameters
    ----------
    names : iterable of str
        Names of the numbers that the script has reported.
    wanted : str, optional
        The user's choice: a name, or a name with ``:max`` or ``:min``.

    Raises
    ------
    ConfigurationError
        If no value was reported under that name.
    """
    names = list(names)
    if wanted is not None:
        name, _, direction = wanted.rpartition(":") if wanted.endswith((":max", ":min")) else (wanted, "", "")
        if name not in names:
            raise ConfigurationError(
                f"got --watch {wanted}, but the script reports {', '.join(names)}: name one of these"
            )
        return Watched(name, direction == "max" if direction else higher_is_better(name))
    best = max(names, key=lambda name: (is_validation(name), is_loss(name)))
    return Watched(best, higher_is_better(best))


def common_end(trials: Sequence[Trial], watched: Watched, budget: float, by: str) -> float:
    """Return the steps or seconds at which runs are compared: the budget, or the last point that all runs reached.

    Otherwise a run whose last report is earlier would be compared after less training.
    """
    going = [trial for trial in trials if not trial.failed and trial.dropped is None]
    curves = [points for trial in going if (points := trial.curves.get(watched.name, []))]
    last = min((float(getattr(points[-1], by)) for points in curves), default=budget)
    first = max((float(getattr(points[0], by)) for points in curves), default=budget)
    return max(min(budget, last), min(budget, first))


def outcomes(trials: Sequence[Trial], watched: Watched, budget: float, by: str) -> list[Outcome]:
    """Group the runs by method, in the order in which the methods were first run.

    Parameters
    ----------
    trials : sequence of Trial
    watched : Watched
    budget : float
    by : {"steps", "seconds"}
        The unit of the budget. Values between two reports are interpolated.
    """
    methods = list(dict.fromkeys(trial.method for trial in trials))
    ends = {method: _ends(trials, method, watched, budget, by) for method in methods}
    goal = next((_median(each.value for each in ends[method]) for method in methods if method.plain), math.nan)
    found = []
    for method in methods:
        own = [trial for trial in trials if trial.method == method]
        values = [number(end.value, watched) for end in ends[method]]
        reached = [_reach(trial.curves.get(watched.name, []), goal, watched, by) for trial in own if not trial.failed]
        steps, seconds = (_median(getattr(end, axis) for end in ends[method]) for axis in ("steps", "seconds"))
        failed = [trial.failed for trial in own if trial.failed]
        reach = _median(reached) if reached else math.inf
        drop = next((trial.dropped for trial in own if trial.dropped is not None), None)
        found.append(Outcome(method, values, _median(values), steps, seconds, reach, failed, drop))
    return found


def _ends(trials: Sequence[Trial], method: Method, watched: Watched, budget: float, by: str) -> list[Point]:
    own = [trial for trial in trials if trial.method == method and not trial.failed]
    ends = [_end(trial, watched, budget, by) for trial in own]
    return [end for end in ends if end is not None]


def _end(trial: Trial, watched: Watched, budget: float, by: str) -> Point | None:
    if trial.dropped is not None:
        return trial.dropped.point
    return value_at(trial.curves.get(watched.name, []), budget, by)


def value_at(points: Sequence[Point], at: float, by: str) -> Point | None:
    """Return the value at a number of steps or seconds: interpolated between reports; after the last, the last one.

    None if the first report is later.
    """
    before = [point for point in points if getattr(point, by) <= at]
    if not before:
        return None
    low = before[-1]
    high = next((point for point in points if getattr(point, by) > at), None)
    if high is None:
        return low
    share = (at - getattr(low, by)) / (getattr(high, by) - getattr(low, by))
    return Point(*(a if a == b else a + share * (b - a) for a, b in zip(low, high)))


def _reach(points: Sequence[Point], goal: float, watched: Watched, by: str) -> float:
    """Return the steps or seconds after which the curve was first as good as the goal; infinity if never."""
    sign, last = watched.sign, None
    for point in points:
        if sign * point.value <= sign * goal:
            if last is None or not math.isfinite(last.value) or last.value == point.value:
                return float(getattr(point, by))
            share = (goal - last.value) / (point.value - last.value)
            return float(getattr(last, by) + share * (getattr(point, by) - getattr(last, by)))
        last = point
    return math.inf


def number(value: float, watched: Watched) -> float:
    """Return a value to compare: NaN counts as the worst infinity."""
    return watched.sign * math.inf if math.isnan(value) else value


def _median(values: Iterable[float]) -> float:
    values = list(values)
    return median(values) if values else math.nan


def choose(found: Sequence[Outcome], default: Method, watched: Watched) -> tuple[Outcome | None, str]:
    """Choose a method; return its outcome, or None if all failed, and the reason.

    The defaults are kept unless the worst run of the best method is better than their best run. Methods that were
    dropped are left out.

    Parameters
    ----------
    found : sequence of Outcome
    default : Method
        The default method, which need not be among them.
    watched : Watched
    """
    sign = watched.sign
    able = [each for each in found if each.values and not each.failed and each.dropped is None]
    if not able:
        return None, "no method has come to an end"
    best = min(able, key=lambda each: sign * each.value)
    own = next((each for each in able if each.method == default), None)
    if best.method.plain:
        return best, "plain training was the best: more workers did not pay in this budget"
    if own is None or best is own:
        return best, "it was the best"
    if max(sign * value for value in best.values) >= min(sign * value for value in own.values):
        return own, f"{best.method.name} was better in the median, by less than the seeds differ: keep the defaults"
    return best, "it was the best" if len(best.values) > 1 else "it was the best of one run each: try more --seeds"
