"""The runs of `platoon tune`: the user's script with several methods, each for a short budget, and a table."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from platoon_base.cli.failures import describe
from platoon_base.cli.launcher import choose_center, launch
from platoon_base.cli.log_folder import log_file
from platoon_base.cli.log_lines import LogLines
from platoon_base.cli.report import print_line
from platoon_base.cli.study import Method, Outcome, Point, Trial, Watched, choose, common_end, guess, outcomes
from platoon_base.cli.table import aligned
from platoon_base.cli.worker_warnings import WorkerWarnings
from platoon_base.controller.outcome import Reported, Result
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination.budget import Budget
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import registered
from platoon_base.job.hosting import JobOptions
from platoon_base.rules import at_period, default_period, parse_rule
from platoon_base.schedule import Limits
from platoon_base.system.environment import EVERY_N_BATCHES, REPORTS_AT_ONCE, RULE
from platoon_base.worker_process.program import Program

__all__ = ["Tuning", "tune"]

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

    @property
    def by(self) -> str:
        """The unit of the budget: "steps" or "seconds"."""
        return "seconds" if self.steps is None else "steps"

    @property
    def budget(self) -> float:
        """The budget in that unit."""
        return float(self.steps or self.seconds or 0.0)


def tune(tuning: Tuning, console: Console, signals: StopSignals) -> tuple[int, dict[str, Any]]:
    """Make all runs, print a table and the advice; return the exit status and all results for a file.

    Raises
    ------
    ConfigurationError
        If plain training fails, or reports no value that could be compared.
    """
    trials: list[Trial] = []
    warnings = WorkerWarnings(len(tuning.devices))
    watched: Watched | None = None
    fixed = ""
    order = [(method, seed) for seed in range(tuning.seeds) for method in tuning.methods]
    for number, (method, seed) in enumerate(order, 1):
        if fixed and method.rule and not _same_rule(method, fixed):
            continue
        folder = tuning.folder / f"run{number}"
        lines = LogLines([log_file(folder, rank) for rank in range(method.workers)])
        trial, result = _run(tuning, method, seed, signals, folder)
        for line in lines.new(last=True):
            warnings.take(line, now=0.0)
        for text in warnings.new(now=0.0, last=True):  # warnings that earlier runs did not have
            print_line(console, text, style="bold red")
        if result.interrupted:
            break
        watched = watched or _watched(tuning, trial)
        trial = _judged(trial, watched, tuning)
        trials.append(trial)
        print_line(console, f"[{number}/{len(order)}] {_line(trial, watched, tuning)}")
        if trial.rule and method.rule and not fixed and not _same_rule(method, trial.rule):
            fixed = trial.rule
            text = f"WARNING: the script names its rule, {fixed}, which wins: leave it out, and others can be tried too"
            print_line(console, text, style="bold red")
    if not trials or watched is None:
        return 130, {}
    end = common_end(trials, watched, tuning.budget, tuning.by)
    found = outcomes(trials, watched, end, tuning.by)
    _print_table(console, found, watched, tuning)
    if end < tuning.budget:
        after = f"{end:.0f} steps" if tuning.by == "steps" else f"{end:.1f} s"
        print_line(console, f"Compared after {after}, the last moment of which all runs have reported {watched.name}.")
    _print_advice(console, found, watched, tuning, trials)
    status = 130 if len(trials) < len(order) and not fixed else int(any(each.failed for each in found))
    return status, _results(tuning, found, watched, trials)


def _run(tuning: Tuning, method: Method, seed: int, signals: StopSignals, folder: Path) -> tuple[Trial, Result]:
    """Run the script once with a method."""
    curves: dict[str, list[Point]] = {}
    last: list[Reported] = []

    def take(reported: Reported) -> None:
        if reported.rule or not last:
            last[:] = [reported]
        spent = reported.spent
        for name, value in reported.values.items():
            if isinstance(value, (int, float)) and spent.steps:
                curves.setdefault(name, []).append(Point(spent.steps, spent.training_s, float(value)))

    devices = list(tuning.devices[: method.workers])
    limits = Limits(batches=tuning.steps, seconds=tuning.seconds)
    options = JobOptions(
        seed=seed,
        center=choose_center(tuning.center, devices),
        on_report=take,
        budget=Budget(limits, run_s=tuning.run_s),
        fail_fast="early",
        grace_s=_GRACE_S,
    )
    folder.mkdir()
    with _environment(method):
        result = launch(tuning.program, [*tuning.args, *method.words], devices, folder, options, signals)
    trial = Trial(method, seed, curves, _failure(result, folder))
    if last:
        trial = trial._replace(rule=last[0].rule, steps=last[0].spent.steps, syncs=last[0].syncs)
    return trial, result


@contextlib.contextmanager
def _environment(method: Method) -> Iterator[None]:
    """Set the environment variables that make a method the script's default."""
    wanted = {RULE: method.rule, EVERY_N_BATCHES: str(method.period)} if method.rule else {}
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
    by_budget = result.stopped_by.startswith(("batches >=", "seconds >=", "no end within"))
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
            f"validates later than that, give a larger {_budget_option(tuning)}"
        )
    # A script may report a final value under another name than those during training.
    early = [name for name, points in trial.curves.items() if getattr(points[0], tuning.by) <= tuning.budget]
    return guess(trial.curves if tuning.watch or not early else early, tuning.watch)


def _spent_text(tuning: Tuning) -> str:
    return f"within {tuning.steps} steps" if tuning.steps else f"within {tuning.seconds:g} s"


def _budget_option(tuning: Tuning) -> str:
    return "--steps" if tuning.by == "steps" else "--minutes"


def _judged(trial: Trial, watched: Watched, tuning: Tuning) -> Trial:
    """Mark a run as failed if it has no value within the budget."""
    points = trial.curves.get(watched.name, [])
    if trial.failed or (points and getattr(points[0], tuning.by) <= tuning.budget):
        return trial
    first = f"first after {getattr(points[0], tuning.by):.4g} {tuning.by}" if points else "not at all"
    text = (
        f"{watched.name} was reported {first}, and the budget is {tuning.budget:g} {tuning.by}: give a larger "
        f"{_budget_option(tuning)}"
    )
    if trial.method.plain:
        text += f". If the script reports at its end only, a budget ends it: {_how_to_report()}"
        raise ConfigurationError(f"{trial.method.name}: {text}")
    return trial._replace(failed=text)


def _how_to_report() -> str:
    texts = registered().texts("reports_by")
    by_themselves = f"; {', '.join(texts)} report by themselves" if texts else ""
    return f'call connect().report({{"val_loss": loss}}) after each validation{by_themselves}'


def _same_rule(method: Method, told: str) -> bool:
    """Return whether the rule reported by the workers is that of a method."""
    try:
        rule, period = parse_rule(method.rule), method.period or default_period()
        known = parse_rule(told).resolved(method.workers)
        # A user's own loop does not report its period.
        return known in [each.resolved(method.workers) for each in (rule, at_period(rule, period))]
    except ConfigurationError:
        return False  # a user-defined rule


def _line(trial: Trial, watched: Watched, tuning: Tuning) -> str:
    """Return a line about how a run ended."""
    begin = f"{trial.method.name}, seed {trial.seed}"
    if trial.failed:
        return f"{begin}: failed. {trial.failed}"
    (outcome,) = outcomes([trial], watched, tuning.budget, tuning.by)
    return f"{begin}: {watched.name} {outcome.value:.5g} after {outcome.steps:.0f} steps, {outcome.seconds:.1f} s"


def _print_table(console: Console, found: Sequence[Outcome], watched: Watched, tuning: Tuning) -> None:
    plain = next((each for each in found if each.method.plain), None)
    spread = ["of the seeds"] if tuning.seeds > 1 else []
    rows = [["method", watched.name, *spread, "steps", "seconds", "plain's end after", "times sooner"]]
    for each in found:
        if not each.values:
            rows.append([each.method.name, "failed", *[""] * (len(rows[0]) - 2)])
            continue
        span = [f"{min(each.values):.4g} to {max(each.values):.4g}"] if spread else []
        cells = [f"{each.value:.4g}", *span, f"{each.steps:.0f}", f"{each.seconds:.1f}"]
        rows.append([each.method.name, *cells, *_sooner(each, plain, tuning)])
    print_line(console, "")
    for line in aligned(rows, 1):
        print_line(console, line.rstrip())
    better = "higher" if watched.higher else "lower"
    of_all = "; the median of the seeds" if spread else ""
    print_line(console, f"{watched.name}: {better} is better{of_all}. Steps are those of each worker.")


def _sooner(each: Outcome, plain: Outcome | None, tuning: Tuning) -> list[str]:
    """Return when a method was as good as plain training at its end, and how many times sooner that is."""
    if plain is None or not plain.values:
        return ["-", "-"]
    if math.isinf(each.reached):
        return ["never", "-"]
    reached = f"{each.reached:.0f} steps" if tuning.by == "steps" else f"{each.reached:.1f} s"
    return [reached, f"{plain.reached / each.reached:.2f}"]


def _print_advice(
    console: Console, found: Sequence[Outcome], watched: Watched, tuning: Tuning, trials: Sequence[Trial]
) -> None:
    """Print the method to take, and how to write it in the script."""
    if _period_fixed(trials):
        text = "WARNING: the script names its period, which wins: leave it out, and other periods can be tried too"
        print_line(console, text, style="bold red")
    best, reason = choose(found, tuning.default, watched)
    if best is None:
        print_line(console, f"Nothing to take: {reason}.")
        return
    method = best.method
    print_line(console, f"Take: {method.name} ({reason}).", style="bold")
    launched = f"platoon launch -n {method.workers} {shlex.join([*tuning.program.argv, *tuning.args, *method.words])}"
    if method.plain:
        text = "They may in a longer training or at another learning rate: give a larger"
        print_line(console, f"{text} {_budget_option(tuning)}, and see docs/learning.md.")
    elif method.words:
        print_line(console, f"    {launched}")
    elif method == tuning.default:
        print_line(console, "    These are the defaults: leave rule and every_n_batches out.")
    else:
        name = method.rule.partition("(")[0]
        print_line(console, f"    from platoon_base.rules import {name}")
        print_line(console, f"    rule={method.rule}, every_n_batches={method.period}")
        print_line(console, f"in {', '.join(registered().texts('rule_goes_to'))}. Or from outside:")
        print_line(console, f'    {RULE}="{method.rule}" {EVERY_N_BATCHES}={method.period} {launched}')


def _period_fixed(trials: Sequence[Trial]) -> bool:
    """Return whether runs with the same rule and different periods synchronized equally often."""
    rates: dict[tuple[str, int | None], list[float]] = {}
    for trial in trials:
        if trial.method.rule and trial.steps and trial.syncs and not trial.failed:
            rates.setdefault((trial.method.rule, trial.method.period), []).append(trial.syncs / trial.steps)
    several = [
        [each for (other, _), found in rates.items() if other == rule for each in found]
        for rule in {rule for rule, _ in rates}
        if len({period for other, period in rates if other == rule}) > 1
    ]
    return bool(several) and all(max(each) <= 1.1 * min(each) for each in several)


def _results(tuning: Tuning, found: Sequence[Outcome], watched: Watched, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return all results as plain values for a file."""
    return {
        "script": [*tuning.program.argv, *tuning.args],
        "watched": watched.name,
        "better": "higher" if watched.higher else "lower",
        "budget": {tuning.by: tuning.budget},
        "methods": [{**each._asdict(), "method": each.method.name} for each in found],
        "runs": [
            {**trial._asdict(), "method": trial.method.name, "curves": trial.curves.get(watched.name, [])}
            for trial in trials
        ],
    }
