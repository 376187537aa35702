"""The comparison that `platoon tune` makes, by hand: values at the budget, when plain is reached, the choice."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from platoon_base.cli.study import (
    Method,
    Point,
    Trial,
    Watched,
    built_in,
    choose,
    common_end,
    guess,
    outcomes,
    read_method,
    value_at,
)
from platoon_base.cli.tune import Tuning
from platoon_base.cli.tune_report import print_advice
from platoon_base.errors import ConfigurationError
from platoon_base.rules import parse_rule
from platoon_base.worker_process.program import Program

pytestmark = pytest.mark.base

LOSS, ACCURACY = Watched("loss", higher=False), Watched("acc", higher=True)
PLAIN, DEFAULT, OTHER = Method(1), Method(2, "CenterMomentum()", 10), Method(2, "EASGD()", 4)


def curve(*values, every=10):
    """Return points after every so many steps, of half a second each."""
    return [Point(every * i, every * i / 2, value) for i, value in enumerate(values, 1)]


def trials(watched=LOSS, **curves):
    methods = {"plain": PLAIN, "default": DEFAULT, "other": OTHER}
    return [
        Trial(methods[name], seed, {watched.name: curve(*values)})
        for name, runs in curves.items()
        for seed, values in enumerate(runs)
    ]


@pytest.mark.parametrize(
    ("at", "by", "expected"),
    [
        (20, "steps", Point(20, 10, 3)),
        (25, "steps", Point(25, 12.5, 2)),
        (12.5, "seconds", Point(25, 12.5, 2)),
        (99, "steps", Point(30, 15, 1)),
        (9, "steps", None),
    ],
)
def test_the_value_at_the_budget_is_interpolated(at, by, expected):
    assert value_at(curve(5, 3, 1), at, by) == expected


def test_outcomes_are_medians_over_the_seeds():
    found = outcomes(
        trials(plain=[(5, 4, 3), (5, 4, 2), (5, 4, 1)], default=[(4, 2, 1), (4, 1, 0), (8, 8, 8)]), LOSS, 30, "steps"
    )
    plain, default = found
    assert (plain.values, plain.value, plain.steps, plain.seconds) == ([3, 2, 1], 2, 30, 15)
    assert (default.values, default.value) == ([1, 0, 8], 1)
    # Plain is at 2 in the end: first reached after 20 steps, after 10 + 10 * 2/3, and never.
    assert default.reached == 20
    assert plain.reached == 30


@pytest.mark.parametrize(
    ("longer", "shorter", "budget", "expected"),
    [
        ([5, 4, 3, 2], [5, 4, 3], 40, 30),
        ([5, 4, 3, 2], [5, 4, 3], 25, 25),
        ([5, 4, 3, 2], [5, 4, 3, 2], 100, 40),
    ],
)
def test_runs_are_compared_where_all_of_them_have_reported(longer, shorter, budget, expected):
    """What a run learned after the last report of another one does not count."""
    runs = trials(plain=[longer], default=[shorter])
    assert common_end(runs, LOSS, budget, "steps") == expected
    failed = [runs[0], runs[1]._replace(failed="it died")]
    assert common_end(failed, LOSS, budget, "steps") == min(budget, 40)


def test_higher_may_be_better_and_the_axis_may_be_seconds():
    (plain, default) = outcomes(
        trials(ACCURACY, plain=[(0.1, 0.5, 0.7)], default=[(0.6, 0.8, 0.9)]), ACCURACY, 15, "seconds"
    )
    assert plain.value == 0.7
    assert default.reached == pytest.approx(7.5)  # half way between 5 and 10 seconds


def test_a_run_that_diverged_is_the_worst_and_one_that_failed_is_told():
    runs = trials(plain=[(2, 2, 2)], default=[(1, math.nan, math.nan)])
    runs.append(Trial(OTHER, 0, {}, failed="exit status 1"))
    plain, default, other = outcomes(runs, LOSS, 30, "steps")
    assert default.values == [math.inf]
    assert (other.values, other.failed) == ([], ["exit status 1"])
    assert choose([plain, default, other], DEFAULT, LOSS)[0] == plain


@pytest.mark.parametrize(
    ("default", "other", "taken", "word"),
    [
        ([3, 4], [1, 2], OTHER, "it was the best"),
        ([3, 4], [1, 3.5], DEFAULT, "by less than the seeds differ"),
        ([1, 2], [3, 4], DEFAULT, "it was the best"),
        ([8, 9], [8, 8], PLAIN, "did not pay"),
        ([3], [1], OTHER, "try more --seeds"),
    ],
)
def test_the_defaults_stay_unless_another_method_is_clearly_better(default, other, taken, word):
    runs = trials(plain=[(7,)] * len(default), default=[(v,) for v in default], other=[(v,) for v in other])
    best, reason = choose(outcomes(runs, LOSS, 10, "steps"), DEFAULT, LOSS)
    assert best.method == taken
    assert word in reason
    mirrored = [
        trial._replace(curves={"acc": [p._replace(value=-p.value) for p in trial.curves["loss"]]}) for trial in runs
    ]
    assert choose(outcomes(mirrored, ACCURACY, 10, "steps"), DEFAULT, ACCURACY)[0].method == taken


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["loss", "acc", "val_acc", "val_loss"], None, ("val_loss", False)),
        (["loss", "val_accuracy"], None, ("val_accuracy", True)),
        (["accuracy", "loss"], None, ("loss", False)),
        (["val_loss", "val_acc"], "val_acc", ("val_acc", True)),
        (["val_loss", "gain"], "gain:max", ("gain", True)),
        (["val_accuracy"], "val_accuracy:min", ("val_accuracy", False)),
        (["val_accumulated_loss"], None, Watched("val_accumulated_loss", False)),
    ],
)
def test_a_validation_loss_is_compared_unless_the_user_names_another(names, wanted, expected):
    assert guess(names, wanted) == expected
    if wanted:
        with pytest.raises(ConfigurationError, match="--watch nothing, but the script reports"):
            guess(names, "nothing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EASGD(alpha=0.2) every 4", ("EASGD(alpha=0.2)", 4)),
        ("  EASGD  ", ("EASGD()", 4)),
        ("ASGD", ("ASGD()", 10)),
        ("every 30", ("CenterMomentum()", 30)),
        ("every 1", ("AveragedEASGD()", 1)),
        ("DiLoCo(outer_lr=1.0, momentum=0.5) every 7", ("DiLoCo(outer_lr=1.0, momentum=0.5)", 7)),
    ],
)
def test_methods_are_read(text, expected):
    assert read_method(text, 3) == Method(3, *expected)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_built_in_methods_differ_and_name_rules(workers):
    plain, *others = built_in(workers)
    assert plain == Method(1)
    assert others[:2] == [Method(workers, "AveragedEASGD()", 1), Method(workers, "CenterMomentum()", 10)]
    assert len(others) == 9
    assert len({(parse_rule(each.rule).resolved(workers), each.period) for each in others}) == len(others)


def advice(found, load):
    file = io.StringIO()
    methods = [each.method for each in found]
    tuning = Tuning(
        Program("train.py"), [], ["cpu", "cpu"], "host", methods, DEFAULT, 1, 30, None, 9.0, None, Path(), False, load
    )
    print_advice(Console(file=file, width=10_000), found, LOSS, tuning, [])
    return [line for line in file.getvalue().splitlines() if line.startswith("WARNING")]


def test_factors_above_the_number_of_workers_are_doubted():
    slow, fast = curve(4, 3, 2), curve(2, 1, 1)
    found = outcomes([Trial(PLAIN, 0, {"loss": slow}), Trial(DEFAULT, 0, {"loss": fast})], LOSS, 30, "steps")
    (warned,) = advice(found, load=0.0)
    assert "CenterMomentum() every 10 was 3.00 times sooner with 2 workers." in warned
    as_fast = outcomes([Trial(PLAIN, 0, {"loss": slow}), Trial(DEFAULT, 0, {"loss": slow})], LOSS, 30, "steps")
    assert advice(as_fast, load=0.0) == []
    (warned,) = advice(as_fast, load=1000.0)
    assert "the load was 1000.0" in warned
