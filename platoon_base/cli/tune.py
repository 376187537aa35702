"""The runs of `platoon tune`: the user's script with several methods, each for a short budget."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from platoon_base.cli.failures import describe
from platoon_base.cli.halving import DROPPED, Halving, Rung, RunJudge, drop_text
from platoon_base.cli.launcher import choose_center, launch
from platoon_base.cli.log_folder import log_file
from platoon_base.cli.log_lines import LogLines
from platoon_base.cli.report import print_line
from platoon_base.cli.study import Method, Point, Trial, Watched, common_end, guess, outcomes
from platoon_base.cli.worker_warnings import WorkerWarnings
from platoon_base.controller.outcome import Reported, Result
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.budget import Budget
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import registered
from platoon_base.job.hosting import JobOptions
from platoon_base.job.starting import thread_limits
from platoon_base.rules import at_period, default_period, parse_rule
from platoon_base.schedule import Limits
from platoon_base.system.environment import EVERY_N_BATCHES, REPORTS_AT_ONCE, RULE
from platoon_base.worker_process.program import Program

__all__ = ["Study", "Tuning", "tune"]

_GRACE_S = 5.0


class Tuning(NamedTuple):
    """A study: the methods to try and their budget.

    Attributes
    ----------
    program : Program
    args : sequence of str
    devices : sequence of str
        One for each worker.
    center : str
    methods : list of Method
    default : Method
        The method of a script that names no rule.
    seeds : int
    steps : int or None
        The budget of a run in mini-batches per worker; None if it is ``seconds`` of training.
    seconds : float or None
    run_s : float
        Limit on the seconds of a run in all; longer runs are ended.
    watch : str or None
        The value to compare, as given by the user.
    folder : Path
        For the logs.
    halving : bool
        Whether the worse methods are dropped on the way.
    load : float
        The machine's load average before the first run.
    """

    program: Program
    args: Sequence[str]
    devices: Sequence[str]
    center: str
    methods: list[Method]
    default: Method
    seeds: int
    steps: int | None
    seconds: float | None
    run_s: float
    watch: str | None
    folder: Path
    halving: bool
    load: float

    @property
    def by(self) -> str:
        """The unit of the budget: "steps" or "seconds"."""
        return "seconds" if self.steps is None else "steps"

    @property
    def budget_option(self) -> str:
        """The option that gives it."""
        return "--steps" if self.by == "steps" else "--minutes"

    @property
    def budget(self) -> float:
        """The budget in that unit."""
        return float(self.steps or self.seconds or 0.0)


class Study(NamedTuple):
    """All runs of a study.

    Attributes
    ----------
    trials : list of Trial
        In the order in which they were made.
    watched : Watched or None
        The value that is compared; None if no run has ended.
    end : float
        The steps or seconds at which the runs are compared.
    rungs : list of Rung
        The moments at which methods may have been dropped; empty if none was to be.
    interrupted : bool
    """

    trials: list[Trial]
    watched: Watched | None
    end: float
    rungs: list[Rung]
    interrupted: bool


def tune(tuning: Tuning, console: Console, signals: StopSignals) -> Study:
    """Make all runs, and print a line about each.

    Raises
    ------
    ConfigurationError
        If plain training fails, or reports no value that could be compared.
    """
    return _Runs(tuning, console, signals).make()


class _Runs:
    """Makes the runs of a study, one after another."""

    def __init__(self, tuning: Tuning, console: Console, signals: StopSignals) -> None:
        self._tuning, self._console, self._signals = tuning, console, signals
        self._halving = Halving(tuning.methods, tuning.default, tuning.budget, tuning.by) if tuning.halving else None
        self._warnings = WorkerWarnings(len(tuning.devices))
        self._trials: list[Trial] = []
        self._watched: Watched | None = None
        self._fixed = ""  # the rule that the script names

    def make(self) -> Study:
        """Make all runs; see `tune`."""
        rungs = [] if self._halving is None else self._halving.rungs
        interrupted = False
        for seed in range(self._tuning.seeds):
            left = self._left()
            while left and not interrupted:
                method = left.pop(0)
                interrupted = not self._one(method, seed, left)
                left = [each for each in left if self._possible(each)]
            if interrupted:
                break
            if seed == 0 and self._tuning.seeds > 1:
                self._drop_after_first_seed()
        if self._watched is None:
            return Study([], None, self._tuning.budget, rungs, interrupted)
        return Study(self._trials, self._watched, self._end(self._watched), rungs, interrupted)

    def _left(self) -> list[Method]:
        """Return the methods that are run with one more seed."""
        dropped = {trial.method for trial in self._trials if trial.dropped is not None}
        return [each for each in self._tuning.methods if each not in dropped and self._possible(each)]

    def _possible(self, method: Method) -> bool:
        """Return whether a method can be tried: not where the script names another rule."""
        return not (self._fixed and method.rule) or _same_rule(method, self._fixed)

    def _end(self, watched: Watched) -> float:
        return common_end(self._trials, watched, self._tuning.budget, self._tuning.by)

    def _one(self, method: Method, seed: int, then: Sequence[Method]) -> bool:
        """Make a run, before those of other methods with this seed; return False if it was interrupted."""
        tuning, made = self._tuning, len(self._trials) + 1
        folder = tuning.folder / f"run{made}"
        lines = LogLines([log_file(folder, rank) for rank in range(method.workers)])
        halving = self._halving if seed == 0 else None
        judge = None if halving is None else halving.start(method, self._watched)
        trial, result = _run(tuning, method, seed, self._signals, folder, judge)
        for line in lines.new(last=True):
            self._warnings.take(line, now=0.0)
        for text in self._warnings.new(now=0.0, last=True):  # warnings that earlier runs did not have
            print_line(self._console, text, style="bold red")
        if result.interrupted:
            return False
        watched = self._watched = self._watched or _watched(tuning, trial)
        trial = _judged(trial, watched, tuning)
        self._trials.append(trial)
        if halving is not None and not trial.failed and trial.dropped is None:
            halving.add(method, trial.curves[watched.name])
        total = made + len(then) + len(self._left()) * (tuning.seeds - seed - 1)
        print_line(self._console, f"[{made}/{total}] {_line(trial, watched, tuning)}")
        if trial.rule and method.rule and not self._fixed and not _same_rule(method, trial.rule):
            self._fixed = trial.rule
            named = f"the script names its rule, {self._fixed}, which wins"
            print_line(self._console, f"WARNING: {named}: leave it out, and others can be tried too", style="bold red")
        return True

    def _drop_after_first_seed(self) -> None:
        """Drop the methods that get no further seeds."""
        if self._halving is None or self._watched is None:
            return
        drops = self._halving.after_first_seed(self._end(self._watched), self._watched)
        self._trials = [
            trial._replace(dropped=drops[trial.method]) if trial.method in drops else trial for trial in self._trials
        ]
        for method in drops:
            print_line(self._console, f"{method.name}: dropped after its first seed; others were better.")


def _run(
    tuning: Tuning, method: Method, seed: int, signals: StopSignals, folder: Path, judge: RunJudge | None
) -> tuple[Trial, Result]:
    """Run the script once with a method, until the budget or the judge ends it."""
    curves: dict[str, list[Point]] = {}
    last: list[Reported] = []

    def take(reported: Reported) -> None:
        if reported.rule or not last:
            last[:] = [reported]
        spent = reported.spent
        for name, value in reported.values.items():
            if isinstance(value, (int, float)) and spent.steps:
                points = curves.setdefault(name, [])
                points.append(Point(spent.steps, spent.training_s, float(value)))
                if judge is not None:
                    judge.take(name, points)

    devices = list(tuning.devices[: method.workers])
    limits = Limits(batches=tuning.steps, seconds=tuning.seconds)
    options = JobOptions(
        seed=seed,
        center=choose_center(tuning.center, devices),
        on_report=take,
        budget=Budget(limits, run_s=tuning.run_s, verdict=None if judge is None else judge.verdict),
        fail_fast="early",
        grace_s=_GRACE_S,
    )
    folder.mkdir()
    with _environment(method, len(tuning.devices)):
        result = launch(tuning.program, [*tuning.args, *method.words], devices, folder, options, signals)
    trial = Trial(method, seed, curves, _failure(result, folder), dropped=None if judge is None else judge.drop)
    if last:
        trial = trial._replace(rule=last[0].rule, steps=last[0].spent.steps, syncs=last[0].syncs)
    return trial, result


@contextlib.contextmanager
def _environment(method: Method, workers: int) -> Iterator[None]:
    """Set the variables that make a method the script's default, and give plain training a worker's threads."""
    wanted = {RULE: method.rule, EVERY_N_BATCHES: str(method.period)} if method.rule else {}
    wanted.update(thread_limits(workers, os.environ))
    wanted[REPORTS_AT_ONCE] = "1"  # so that each value belongs to its step
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _failure(result: Result, folder: Path) -> str:
    """Return why a run failed; empty if it succeeded or its budget ended it."""
    by_budget = result.stopped_by.startswith(("batches >=", "seconds >=", "no end within", DROPPED))
    bad = next((ended for ended in result.exits if ended.status), None)
    if bad is None or by_budget:
        return ""
    return describe(folder, result.failed or bad)


def _watched(tuning: Tuning, trial: Trial) -> Watched:
    """Choose the value to compare from the first run."""
    if trial.failed:
        raise ConfigurationError(f"{trial.method.name} failed, so nothing can be compared. {trial.failed}")
    if not trial.curves:
        raise ConfigurationError(
            f"the script reported no number while it trained, {_spent_text(tuning)}: {_how_to_report()}. Mini-batches "
            "must be counted too: the adapters do, other loops call connect().progress(steps=1) after each. If it "
            f"validates later than that, give a larger {tuning.budget_option}"
        )
    # A script may report a final value under another name than those during training.
    early = [name for name, points in trial.curves.items() if getattr(points[0], tuning.by) <= tuning.budget]
    return guess(trial.curves if tuning.watch or not early else early, tuning.watch)


def _spent_text(tuning: Tuning) -> str:
    return f"within {tuning.steps} steps" if tuning.steps else f"within {tuning.seconds:g} s"


def _judged(trial: Trial, watched: Watched, tuning: Tuning) -> Trial:
    """Mark a run as failed if it has no value within the budget."""
    points = trial.curves.get(watched.name, [])
    if trial.failed or (points and getattr(points[0], tuning.by) <= tuning.budget):
        return trial
    first = f"first after {getattr(points[0], tuning.by):.4g} {tuning.by}" if points else "not at all"
    text = (
        f"{watched.name} was reported {first}, and the budget is {tuning.budget:g} {tuning.by}: give a larger "
        f"{tuning.budget_option}"
    )
    if trial.method.plain:
        text += f". If the script reports at its end only, a budget ends it: {_how_to_report()}"
        raise ConfigurationError(f"{trial.method.name}: {text}")
    return trial._replace(failed=text, dropped=None)


def _how_to_report() -> str:
    texts = registered().texts("reports_by")
    by_themselves = f"; {', '.join(texts)} report by themselves" if texts else ""
    return f'call connect().report({{"val_loss": loss}}) after each validation{by_themselves}'


def _same_rule(method: Method, told: str) -> bool:
    """Return whether the rule reported by the workers is that of a method."""
    try:
        rule, period = parse_rule(method.rule), method.period or default_period()
        known = repr(parse_rule(told).resolved(method.workers))
        # A user's own loop does not report its period.
        return known in [repr(each.resolved(method.workers)) for each in (rule, at_period(rule, period))]
    except ConfigurationError:
        return False  # a user-defined rule


def _line(trial: Trial, watched: Watched, tuning: Tuning) -> str:
    """Return a line about how a run ended."""
    begin = f"{trial.method.name}, seed {trial.seed}"
    if trial.failed:
        return f"{begin}: failed. {trial.failed}"
    if trial.dropped is not None:
        return f"{begin}: {drop_text(trial.dropped, watched)}"
    (outcome,) = outcomes([trial], watched, tuning.budget, tuning.by)
    return f"{begin}: {watched.name} {outcome.value:.5g} after {outcome.steps:.0f} steps, {outcome.seconds:.1f} s"
