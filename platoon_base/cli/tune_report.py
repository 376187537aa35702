"""The end of `platoon tune`: a table, the methods that were dropped, and the method to take."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from platoon_base.cli.halving import drop_text
from platoon_base.cli.report import print_line
from platoon_base.cli.study import Drop, Outcome, Trial, Watched, choose, outcomes
from platoon_base.cli.table import aligned
from platoon_base.cli.tune import Study, Tuning
from platoon_base.frameworks.registered import registered
from platoon_base.job.starting import thread_limits
from platoon_base.system.environment import EVERY_N_BATCHES, RULE

__all__ = ["print_advice", "print_study", "results", "status_of", "table_rows"]

_BUSY = 0.5  # load average per core


def print_study(console: Console, tuning: Tuning, study: Study) -> None:
    """Print a table of all methods and the advice; nothing if no run has ended."""
    watched = study.watched
    if watched is None:
        return
    found = outcomes(study.trials, watched, study.end, tuning.by)
    _print_table(console, found, watched, tuning)
    if study.end < tuning.budget:
        after = f"{study.end:.0f} steps" if tuning.by == "steps" else f"{study.end:.1f} s"
        print_line(console, f"Compared after {after}, the last moment of which all runs have reported {watched.name}.")
    dropped = [each for each in found if each.dropped is not None]
    for each in dropped:
        if each.dropped is not None:
            print_line(console, f"{each.method.name} was {drop_text(each.dropped, watched)}.")
    if dropped:
        print_line(console, "--no-halving runs all methods to the end.")
    print_advice(console, found, watched, tuning, study.trials)


def status_of(study: Study) -> int:
    """Return the exit status: 0, 1 if a run failed, 130 if the study was interrupted."""
    return 130 if study.interrupted else int(any(trial.failed for trial in study.trials))


def results(tuning: Tuning, study: Study) -> dict[str, Any]:
    """Return all results as plain values for a file; nothing if no run has ended."""
    watched = study.watched
    if watched is None:
        return {}
    found = outcomes(study.trials, watched, study.end, tuning.by)
    return {
        "script": [*tuning.program.argv, *tuning.args],
        "watched": watched.name,
        "better": "higher" if watched.higher else "lower",
        "budget": {tuning.by: tuning.budget},
        "rungs": [rung._asdict() for rung in study.rungs],
        "methods": [{**each._asdict(), "method": each.method.name, "dropped": _plain(each.dropped)} for each in found],
        "runs": [
            {
                **trial._asdict(),
                "method": trial.method.name,
                "curves": trial.curves.get(watched.name, []),
                "dropped": _plain(trial.dropped),
            }
            for trial in study.trials
        ],
    }


def _plain(drop: Drop | None) -> dict[str, Any] | None:
    return None if drop is None else {**drop.point._asdict(), "better": drop.better, "keep": drop.keep}


def table_rows(found: Sequence[Outcome], watched: Watched, tuning: Tuning) -> list[list[str]]:
    """Return the table of all methods, its head first."""
    plain = next((each for each in found if each.method.plain), None)
    spread = ["of the seeds"] if tuning.seeds > 1 else []
    rows = [["method", watched.name, *spread, "steps", "seconds", "plain's end after", "times sooner"]]
    for each in found:
        if not each.values:
            rows.append([each.method.name, "failed", *[""] * (len(rows[0]) - 2)])
            continue
        span = [f"{min(each.values):.4g} to {max(each.values):.4g}" if len(each.values) > 1 else ""] if spread else []
        cells = [f"{each.value:.4g}", *span, f"{each.steps:.0f}", f"{each.seconds:.1f}"]
        rows.append([each.method.name, *cells, *_sooner(each, plain, tuning)])
    return rows


def _print_table(console: Console, found: Sequence[Outcome], watched: Watched, tuning: Tuning) -> None:
    print_line(console, "")
    for line in aligned(table_rows(found, watched, tuning), 1):
        print_line(console, line.rstrip())
    better = "higher" if watched.higher else "lower"
    of_all = "; the median of the seeds" if tuning.seeds > 1 else ""
    print_line(console, f"{watched.name}: {better} is better{of_all}. Steps are those of each worker.")
    limits = thread_limits(len(tuning.devices), os.environ)
    if limits:
        threads = f"{next(iter(limits.values()))} of {len(os.sched_getaffinity(0))} cores"
        print_line(console, f"Each worker, and plain training, had threads for {threads}; python alone uses all.")


def _sooner(each: Outcome, plain: Outcome | None, tuning: Tuning) -> list[str]:
    """Return when a method was as good as plain training at its end, and how many times sooner that is."""
    if each.dropped is not None:
        return ["dropped", "-"]
    if plain is None or not plain.values:
        return ["-", "-"]
    if math.isinf(each.reached):
        return ["never", "-"]
    reached = f"{each.reached:.0f} steps" if tuning.by == "steps" else f"{each.reached:.1f} s"
    return [reached, f"{plain.reached / each.reached:.2f}"]


def print_advice(
    console: Console, found: Sequence[Outcome], watched: Watched, tuning: Tuning, trials: Sequence[Trial]
) -> None:
    """Print the method to take, and how to write it in the script."""
    if _period_fixed(trials):
        text = "WARNING: the script names its period, which wins: leave it out, and other periods can be tried too"
        print_line(console, text, style="bold red")
    for text in _doubts(found, tuning):
        print_line(console, f"WARNING: {text}", style="bold red")
    best, reason = choose(found, tuning.default, watched)
    if best is None:
        print_line(console, f"Nothing to take: {reason}.")
        return
    method = best.method
    print_line(console, f"Take: {method.name} ({reason}).", style="bold")
    launched = f"platoon launch -n {method.workers} {shlex.join([*tuning.program.argv, *tuning.args, *method.words])}"
    if method.plain:
        text = "They may in a longer training or at another learning rate: give a larger"
        print_line(console, f"{text} {tuning.budget_option}, and see docs/learning.md.")
    elif method.words:
        print_line(console, f"    {launched}")
    elif method == tuning.default:
        print_line(console, "    These are the defaults of the adapters: leave rule and every_n_batches out.")
    else:
        name = method.rule.partition("(")[0]
        print_line(console, f"    from platoon_base.rules import {name}")
        print_line(console, f"    rule={method.rule}, every_n_batches={method.period}")
        print_line(console, f"in {', '.join(registered().texts('rule_goes_to'))}. Or from outside:")
        print_line(console, f'    {RULE}="{method.rule}" {EVERY_N_BATCHES}={method.period} {launched}')


def _doubts(found: Sequence[Outcome], tuning: Tuning) -> Iterator[str]:
    """Yield why the factors over plain training may be wrong."""
    workers, cores = len(tuning.devices), len(os.sched_getaffinity(0))
    if tuning.load > _BUSY * cores:
        yield (
            f"the load was {tuning.load:.1f} on {cores} cores before the first run: other programs take part of the "
            "machine, so seconds are not comparable; repeat this on an idle machine"
        )
    plain = next((each for each in found if each.method.plain and each.values), None)
    for each in found:
        if plain is None or each.dropped is not None or not each.values or not each.reached:
            continue
        if (factor := plain.reached / each.reached) > workers:
            yield (
                f"{each.method.name} was {factor:.2f} times sooner with {workers} workers. More than {workers} is no "
                "gain of speed: plain training was disturbed, or ended on a bad value; try more --seeds or a larger "
                f"{tuning.budget_option}"
            )


def _period_fixed(trials: Sequence[Trial]) -> bool:
    """Return whether runs with different periods synchronized equally often."""
    counted = [each for each in trials if each.method.rule and each.steps and each.syncs and not each.failed]
    rates = [trial.syncs / trial.steps for trial in counted]
    return len({trial.method.period for trial in counted}) > 1 and max(rates) <= 1.1 * min(rates)
