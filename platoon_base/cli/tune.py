"""The methods and runs of `platoon tune`. Optuna decides which methods to drop."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from platoon_base.cli.launch_options import StartOptions
from platoon_base.cli.launcher import choose_center, launch
from platoon_base.cli.recent import higher_is_better, is_loss, is_validation
from platoon_base.cli.report import print_line
from platoon_base.cli.worker_output import LogLines, WorkerWarnings, describe
from platoon_base.controller.outcome import Reported, Result
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.stopping import Budget
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import registered
from platoon_base.job.hosting import JobOptions
from platoon_base.job.starting import log_file, thread_limits
from platoon_base.rules import (
    CenterMomentum,
    Rule,
    default_period,
    default_rule,
    parse_rule,
    settings_of,
)
from platoon_base.schedule import Limits
from platoon_base.system.environment import EVERY_N_BATCHES, REPORTS_AT_ONCE, RULE

_METHOD = re.compile(r"(?P<rule>.*?)\s*(?:\bevery\s+(?P<period>\d+))?", re.DOTALL)


class Method(NamedTuple):
    """A way to run the script; without rule and period the script's own settings apply."""

    workers: int
    rule: str = ""
    period: int | None = None
    words: tuple[str, ...] = ()  # Extra arguments of the script.

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
    higher: bool  # Whether higher is better.

    def cost(self, value: float) -> float:
        """Return a number to minimize; NaN becomes infinity."""
        return math.inf if math.isnan(value) else -value if self.higher else value

    def finite(self, value: float) -> float:
        """Return a value to compare; NaN becomes the worst infinity."""
        return -self.cost(value) if self.higher else self.cost(value)


class Point(NamedTuple):
    """A reported value, and the steps of each worker and seconds of training before it."""

    steps: float
    seconds: float
    value: float


def built_in(workers: int) -> list[Method]:
    """Return the built-in methods: first plain training and the default, then all others."""
    period = default_period()
    gain = CenterMomentum().resolved(workers).gain or 1.0
    texts = [(_text_of(default_rule(period)), period), ("AveragedEASGD()", 1)]
    texts += [("CenterMomentum()", 10), ("DiLoCo()", 20)]
    texts += [("CenterMomentum()", 4), ("CenterMomentum()", 30)]
    texts += [(f"CenterMomentum(gain={gain * factor:.2g})", 10) for factor in (0.5, 1.5)]
    texts += [("EASGD()", 10), ("EASGD()", 4)]
    return [Method(1), *(Method(workers, *each) for each in dict.fromkeys(texts))]


def read_method(text: str, workers: int) -> Method:
    """Parse a method such as "EASGD() every 4"; the rule or the period may be left out."""
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


_DROPPED = "dropped: other methods were better"
_ENDED = ("batches >=", "seconds >=", "no end within", _DROPPED)  # These reasons are no failures.
_PERCENTS = range(30, 100, 10)  # Methods are compared at these percentages of the budget.


class Tuning(NamedTuple):
    """The settings of a study; the budget is `steps`, or else `minutes`."""

    start: StartOptions
    devices: Sequence[str]
    methods: list[Method]
    default: Method  # The method of a script that names no rule.
    folder: Path
    load: float  # The machine's load before the first run.
    seeds: int
    steps: int | None
    minutes: float | None
    limit: float  # A run may take this number of seconds, including its start.
    watch: str | None
    no_halving: bool

    @property
    def by(self) -> str:
        """The unit of the budget: "steps" or "seconds"."""
        return "seconds" if self.steps is None else "steps"

    @property
    def budget(self) -> float:
        """The budget in that unit."""
        return float(self.steps or 60 * (self.minutes or 1))

    @property
    def budget_option(self) -> str:
        """The option that sets the budget."""
        return "--minutes" if self.steps is None else "--steps"


class Run(NamedTuple):
    """A run of one method with one seed."""

    method: Method
    seed: int
    points: list[Point]
    failed: str = ""  # Why there is nothing to compare.
    dropped: Point | None = None  # Point at which the run was dropped.
    rule: str = ""  # The workers report it.
    steps: float = 0.0  # Both `steps` and `syncs` are from the latest report.
    syncs: float = 0.0


class Study(NamedTuple):
    """All runs; they are compared at `end`, in steps or seconds."""

    runs: list[Run]
    watched: Watched | None  # None if no run has ended
    end: float
    interrupted: bool


def require_optuna() -> Any:
    """Return the module Optuna, which prints warnings only; raise an error if it is missing."""
    try:
        import optuna
    except ImportError:
        missing = "platoon tune needs Optuna, which is not installed"
        raise ConfigurationError(f"{missing}: pip install 'platoon-plugins[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def tune(tuning: Tuning, console: Console, signals: StopSignals) -> Study:
    """Run each method with each seed, and print a line about each run."""
    runs = _Runs(tuning, console, signals)
    interrupted = not runs.run_all()
    end = tuning.budget
    # Compare at the earliest last report of a run, but not before each run has reported.
    if runs.watched is not None:
        curves = [run.points for run in runs.done if not run.failed and run.dropped is None]
        ends = [float(getattr(points[-1], tuning.by)) for points in curves]
        begins = [float(getattr(points[0], tuning.by)) for points in curves]
        end = max(min([end, *ends]), min(end, max(begins, default=end)))
    return Study(runs.done, runs.watched, end, interrupted)


class _Runs:
    """Runs the methods one after another."""

    def __init__(self, tuning: Tuning, console: Console, signals: StopSignals) -> None:
        self._tuning, self._console, self._signals = tuning, console, signals
        self._warnings = WorkerWarnings(len(tuning.devices))
        self._optuna = require_optuna()
        self._study: Any = None  # It is created once it is known whether higher is better.
        self.watched: Watched | None = None
        self.done: list[Run] = []

    def run_all(self) -> bool:
        """Run all methods; return False if the study was interrupted."""
        dropped: set[Method] = set()
        for seed in range(self._tuning.seeds):
            for method in self._tuning.methods:
                if method in dropped:
                    continue
                if not self._one(method, seed):
                    return False
                dropped |= {run.method for run in self.done[-1:] if run.dropped is not None}
                if fixed := rule_of_script(self.done):
                    text = (
                        f"the script sets its rule, {fixed}, so other rules have no effect: remove it from the script"
                    )
                    print_line(self._console, f"WARNING: {text}", style="bold red")
                    return True
        return True

    def _one(self, method: Method, seed: int) -> bool:
        """Run one method with one seed; return False if it was interrupted."""
        tuning = self._tuning
        folder = tuning.folder / f"run{len(self.done) + 1}"
        lines = LogLines([log_file(folder, rank) for rank in range(method.workers)])
        # Plain training is no candidate.
        trial = None if method.plain else self._study.ask()
        run, curves, result = self._run(method, seed, folder, trial)
        for line in lines.new(last=True):
            self._warnings.take(line, now=0.0)
        for text in self._warnings.new(now=0.0, last=True):  # Earlier runs did not have these.
            print_line(self._console, text, style="bold red")
        if result.interrupted:
            return False
        if self.watched is None:
            self.watched = _watched(tuning, run, curves)
            self._study = self._new_study(self.watched)
        run = _checked(run._replace(points=curves.get(self.watched.name, [])), self.watched, tuning)
        self.done.append(run)
        end = run.dropped or value_at(run.points, tuning.budget, tuning.by)
        total = len(tuning.methods) * tuning.seeds
        states, text = self._optuna.trial.TrialState, f"failed. {run.failed}"
        state, value = states.FAIL, None
        if not run.failed and end is not None:
            text = f"{self.watched.name} {end.value:.5g} after {end.steps:.0f} steps"
            text = f"{text}, {end.seconds:.1f} s{', dropped' if run.dropped else ''}"
            state, value = states.COMPLETE, self.watched.finite(end.value)
        if trial is not None and run.dropped is not None:
            self._study.tell(trial, state=states.PRUNED)
        elif trial is not None:
            self._study.tell(trial, value, state)
        print_line(self._console, f"[{len(self.done)}/{total}] {method.name}, seed {seed}: {text}")
        return True

    def _new_study(self, watched: Watched) -> Any:
        pruners = self._optuna.pruners
        median = pruners.MedianPruner(0, _PERCENTS[0], n_min_trials=2)
        return self._optuna.create_study(
            direction="maximize" if watched.higher else "minimize",
            pruner=pruners.NopPruner() if self._tuning.no_halving else median,
        )

    def _run(
        self,
        method: Method,
        seed: int,
        folder: Path,
        trial: Any,
    ) -> tuple[Run, Mapping[str, list[Point]], Result]:
        """Run the script until the budget or Optuna ends the run; return its curves by name too."""
        tuning = self._tuning
        curves: dict[str, list[Point]] = {}
        last: list[Reported] = []
        dropped: list[Point] = []
        percents = list(_PERCENTS)
        prunable = seed == 0 and method != tuning.default

        def take(reported: Reported) -> None:
            if reported.rule or not last:
                last[:] = [reported]
            spent = reported.spent
            for name, value in reported.values.items():
                if isinstance(value, (int, float)) and spent.steps:
                    point = Point(spent.steps, spent.training_s, float(value))
                    curves.setdefault(name, []).append(point)
            points = curves.get(self.watched.name, []) if self.watched and trial else []
            reached = 100 * getattr(points[-1], tuning.by) / tuning.budget if points else 0.0
            while percents and percents[0] <= reached and not dropped:
                percent = percents.pop(0)
                there = value_at(points, tuning.budget * percent / 100, tuning.by)
                if there is not None:
                    trial.report(there.value, percent)
                    dropped.extend([there] if prunable and trial.should_prune() else [])

        devices = list(tuning.devices[: method.workers])
        seconds = None if tuning.steps and not tuning.minutes else 60 * (tuning.minutes or 1)
        budget = Budget(
            Limits(batches=tuning.steps, seconds=seconds),
            run_s=tuning.limit,
            verdict=lambda: _DROPPED if dropped else "",
        )
        options = JobOptions(
            seed=seed,
            center=choose_center(tuning.start.center, devices),
            on_report=take,
            budget=budget,
            fail_fast="early",
        )
        folder.mkdir()
        words = [*tuning.start.args, *method.words]
        with _environment(method, len(tuning.devices)):
            result = launch(tuning.start.program, words, devices, folder, options, self._signals)
        run = Run(method, seed, [], _failure(result, folder), next(iter(dropped), None))
        if last:
            run = run._replace(rule=last[0].rule, steps=last[0].spent.steps, syncs=last[0].syncs)
        return run, curves, result


def rule_of_script(runs: Sequence[Run]) -> str:
    """Return the rule that the script sets, if all methods ran with it; otherwise ''."""
    candidates = [run for run in runs if run.rule and run.method.rule]
    used = {run.rule for run in candidates}
    rules = {parse_rule(run.method.rule).resolved(run.method.workers) for run in candidates}
    return next(iter(used)) if len(used) == 1 < len(rules) else ""


@contextlib.contextmanager
def _environment(method: Method, workers: int) -> Iterator[None]:
    """Make a method the script's default, and give plain training the threads of one worker."""
    wanted = {RULE: method.rule, EVERY_N_BATCHES: str(method.period)} if method.rule else {}
    wanted.update(thread_limits(workers, os.environ))
    wanted[REPORTS_AT_ONCE] = "1"  # Then each value belongs to its step.
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _failure(result: Result, folder: Path) -> str:
    """Return why a run failed; empty if it succeeded or was ended by its budget or by Optuna."""
    bad = next((ended for ended in result.exits if ended.status), None)
    if bad is None or result.stopped_by.startswith(_ENDED):
        return ""
    return describe(folder, result.failed or bad)


def _watched(tuning: Tuning, run: Run, curves: Mapping[str, list[Point]]) -> Watched:
    """Choose the value to compare from the first run."""
    if run.failed:
        name = run.method.name
        raise ConfigurationError(f"{name} failed, so there is nothing to compare. {run.failed}")
    if not curves:
        raise ConfigurationError(
            f"the script reported no number within {tuning.budget:g} {tuning.by}: "
            f"{_how_to_report()}. Mini-batches must be counted too: the adapters do so, and other "
            "loops call connect().progress(steps=1) after each. If it validates later, pass a "
            f"larger {tuning.budget_option}"
        )
    # A script may report a final value under another name than those during training.
    early = [name for name in curves if getattr(curves[name][0], tuning.by) <= tuning.budget]
    return guess(curves if tuning.watch or not early else early, tuning.watch)


def _checked(run: Run, watched: Watched, tuning: Tuning) -> Run:
    """Return the run; if it has no value within the budget, return it as failed."""
    begin = getattr(run.points[0], tuning.by) if run.points else None
    if run.failed or (begin is not None and begin <= tuning.budget):
        return run
    when = "not at all" if begin is None else f"first after {begin:.4g} {tuning.by}"
    text = (
        f"{watched.name} was reported {when}, and the budget is {tuning.budget:g} {tuning.by}: "
        f"pass a larger {tuning.budget_option}"
    )
    if run.method.plain:
        end = "A script that reports only at its end is stopped by the budget before that"
        raise ConfigurationError(f"{run.method.name}: {text}. {end}: {_how_to_report()}")
    return run._replace(failed=text, dropped=None)


def _how_to_report() -> str:
    texts = registered().texts("reports_by")
    by_themselves = f"; {', '.join(texts)} report by themselves" if texts else ""
    return f'call connect().report({{"val_loss": loss}}) after each validation{by_themselves}'
