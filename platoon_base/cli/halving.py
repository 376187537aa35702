"""Successive halving for `platoon tune`, without I/O: which methods need not be run further."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from platoon_base.cli.study import Drop, Method, Point, Watched, number, value_at

__all__ = ["DROPPED", "Halving", "RunJudge", "Rung", "drop_text"]

DROPPED = "dropped:"  # the reason to stop of a job begins so
_SHARES = ((1 / 3, 2), (2 / 3, 4))  # after this share of the budget one method of so many goes on

_LEAST = 2  # the seeds decide between the last two


class Rung(NamedTuple):
    """A moment at which methods are compared.

    Attributes
    ----------
    at : float
        Steps or seconds, as the budget.
    keep : int
        How many methods go on.
    """

    at: float
    keep: int


class Halving:
    """The comparison of methods while the runs of the first seed are made, one after another.

    A method is dropped at a rung if ``keep`` others that are still in it had better values at the same moment. So a run
    is ended as soon as it cannot be among the best, nothing is run twice, and the first run of all goes to its end.
    Plain training and the default method are never dropped: all others are compared with them at the end.

    Parameters
    ----------
    methods : sequence of Method
        All methods of the study.
    default : Method
    budget : float
    by : {"steps", "seconds"}

    Attributes
    ----------
    rungs : list of Rung
    """

    def __init__(self, methods: Sequence[Method], default: Method, budget: float, by: str) -> None:
        candidates = sum(not method.plain for method in methods)
        self.rungs = [Rung(budget * share, max(_LEAST, math.ceil(candidates / divisor))) for share, divisor in _SHARES]
        self._default = default
        self._by = by
        self._curves: dict[Method, Sequence[Point]] = {}

    def start(self, method: Method, watched: Watched | None) -> RunJudge:
        """Return the judge of a run that is about to start; the first run of a study has no watched value yet."""
        return RunJudge(self, method, [] if watched is None or self._kept(method) else self.rungs, watched)

    def add(self, method: Method, points: Sequence[Point]) -> None:
        """Add a run that has ended and was not dropped, for those to come."""
        if not method.plain and points:
            self._curves[method] = points

    def after_first_seed(self, end: float, watched: Watched) -> dict[Method, Drop]:
        """Return the methods whose other seeds need not be run.

        Parameters
        ----------
        end : float
            The steps or seconds at which the runs of the first seed are compared.
        watched : Watched
        """
        last = Rung(end, self.rungs[-1].keep)
        judged = {
            method: self.judge(method, points, last, watched)
            for method, points in self._curves.items()
            if not self._kept(method)
        }
        return {method: drop for method, drop in judged.items() if drop is not None}

    def judge(self, method: Method, points: Sequence[Point], rung: Rung, watched: Watched) -> Drop | None:
        """Return why a method is dropped at a rung; None if it goes on, or has no value there."""
        own = value_at(points, rung.at, self._by)
        if own is None:
            return None
        limit, better = watched.sign * number(own.value, watched), {}
        for other, curve in self._curves.items():
            point = None if other == method else value_at(curve, rung.at, self._by)
            if point is not None and watched.sign * number(point.value, watched) < limit:
                better[other.name] = point.value
        return Drop(own, better, rung.keep) if len(better) >= rung.keep else None

    def at(self, point: Point) -> float:
        """Return the steps or seconds of a point, as the budget counts."""
        return float(getattr(point, self._by))

    def _kept(self, method: Method) -> bool:
        return method.plain or method == self._default


class RunJudge:
    """Compares a run with those before it, at each rung that it reaches.

    Attributes
    ----------
    drop : Drop or None
        Why the run is to be ended.
    """

    def __init__(self, halving: Halving, method: Method, rungs: Sequence[Rung], watched: Watched | None) -> None:
        self._halving = halving
        self._method = method
        self._rungs = list(rungs)
        self._watched = watched
        self.drop: Drop | None = None

    def take(self, name: str, points: Sequence[Point]) -> None:
        """Look at the values that a run has reported by now under a name."""
        if self._watched is None or name != self._watched.name or self.drop is not None:
            return
        while self._rungs and self._halving.at(points[-1]) >= self._rungs[0].at and self.drop is None:
            rung = self._rungs.pop(0)
            # A run whose first value is later than the rung is compared there.
            rung = rung._replace(at=max(rung.at, self._halving.at(points[0])))
            self.drop = self._halving.judge(self._method, points, rung, self._watched)

    def verdict(self) -> str:
        """Return why the job is to stop; empty if it may go on."""
        return "" if self.drop is None else f"{DROPPED} {len(self.drop.better)} methods were better"


def drop_text(drop: Drop, watched: Watched) -> str:
    """Return when a method was dropped and why."""
    others = ", ".join(f"{name} ({value:.4g})" for name, value in drop.better.items())
    return (
        f"dropped after {drop.point.steps:.0f} steps, {drop.point.seconds:.1f} s, with {watched.name} "
        f"{drop.point.value:.4g}. Only the best {drop.keep} go on from there; better were: {others}"
    )
