"""The comparison of `platoon tune`, by hand: values at the budget, when plain is reached, the choice."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from platoon_base.cli.launch_options import StartOptions
from platoon_base.cli.tune import (
    Method,
    Point,
    Run,
    Study,
    Tuning,
    Watched,
    built_in,
    guess,
    read_method,
    rule_of_script,
    value_at,
)
from platoon_base.cli.tune_report import choose, lines, outcomes, picture
from platoon_base.errors import ConfigurationError
from platoon_base.rules import parse_rule
from platoon_base.worker_process.program import Program

pytestmark = pytest.mark.base

LOSS, ACCURACY = Watched("loss", higher=False), Watched("acc", higher=True)
PLAIN, DEFAULT, OTHER = Method(1), Method(2, "CenterMomentum()", 10), Method(2, "EASGD()", 4)


def curve(*values, every=10):
    """Return points after every so many steps, of half a second each."""
    return [Point(every * i, every * i / 2, value) for i, value in enumerate(values, 1)]


def runs_of(**curves):
    methods = {"plain": PLAIN, "default": DEFAULT, "other": OTHER}
    return [
        Run(methods[name], seed, curve(*values)) for name, runs in curves.items() for seed, values in enumerate(runs)
    ]


def found_in(runs, watched=LOSS, end=30, by="steps"):
    return outcomes(Study(runs, watched, end, False), watched, by)


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
    plain = [(5, 4, 3), (5, 4, 2), (5, 4, 1)]
    plain, default = found_in(runs_of(plain=plain, default=[(4, 2, 1), (4, 1, 0), (8, 8, 8)]))
    assert (plain.values, plain.value, plain.steps, plain.seconds) == ([3, 2, 1], 2, 30, 15)
    assert (default.values, default.value) == ([1, 0, 8], 1)
    # Plain is at 2 in the end: first reached after 20 steps, after 10 + 10 * 2/3, and never.
    assert default.reached == 20
    assert plain.reached == 30


def test_higher_may_be_better_and_the_axis_may_be_seconds():
    runs = runs_of(plain=[(0.1, 0.5, 0.7)], default=[(0.6, 0.8, 0.9)])
    plain, default = found_in(runs, ACCURACY, 15, "seconds")
    assert plain.value == 0.7
    assert default.reached == pytest.approx(7.5)  # half way between 5 and 10 seconds


def test_a_run_that_diverged_is_the_worst_and_one_that_failed_is_told():
    runs = runs_of(plain=[(2, 2, 2)], default=[(1, math.nan, math.nan)])
    runs.append(Run(OTHER, 0, [], failed="exit status 1"))
    plain, default, other = found_in(runs)
    assert default.values == [math.inf]
    assert (other.values, other.failed) == ([], ["exit status 1"])
    assert choose([plain, default, other], DEFAULT, LOSS)[0] == plain
    worst = found_in(runs_of(plain=[(2, 2, 2)], default=[(3, math.nan, math.nan)]), ACCURACY)[1]
    assert worst.values == [-math.inf]


@pytest.mark.parametrize(
    ("default", "other", "taken", "word"),
    [
        ([3, 4], [1, 2], OTHER, "it was the best"),
        ([3, 4], [1, 3.5], DEFAULT, "by less than the seeds differ"),
        ([1, 2], [3, 4], DEFAULT, "it was the best"),
        ([8, 9], [8, 8], PLAIN, "did not help"),
        ([3], [1], OTHER, "try more --seeds"),
    ],
)
def test_the_defaults_stay_unless_another_method_is_clearly_better(default, other, taken, word):
    runs = runs_of(plain=[(7,)] * len(default), default=[(v,) for v in default], other=[(v,) for v in other])
    best, reason = choose(found_in(runs, end=10), DEFAULT, LOSS)
    assert best.method == taken
    assert word in reason
    mirrored = [run._replace(points=[p._replace(value=-p.value) for p in run.points]) for run in runs]
    assert choose(found_in(mirrored, ACCURACY, 10), DEFAULT, ACCURACY)[0].method == taken


def test_a_method_that_was_dropped_is_not_chosen():
    runs = runs_of(plain=[(7, 7)], default=[(6, 6)], other=[(5, 5)])
    runs[-1] = runs[-1]._replace(dropped=Point(10, 5, 5))
    found = found_in(runs, end=20)
    assert (found[-1].steps, found[-1].dropped) == (10, True)
    assert choose(found, DEFAULT, LOSS)[0].method == DEFAULT


def test_a_rule_that_all_methods_use_is_that_of_the_script():
    asgd = Method(2, "ASGD()", 10)
    used = [Run(DEFAULT, 0, [], rule="EASGD(alpha=0.3)"), Run(asgd, 0, [], rule="EASGD(alpha=0.3)")]
    assert rule_of_script(used) == "EASGD(alpha=0.3)"
    assert rule_of_script(used[:1]) == ""
    assert rule_of_script([used[0], used[1]._replace(rule="ASGD()")]) == ""
    assert rule_of_script([used[0], used[0]._replace(method=DEFAULT._replace(period=4))]) == ""


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


def printed(runs, load=0.0):
    """Return what the command prints about runs of 30 steps."""
    start = StartOptions(Console(), Program("train.py"), (), 2, (), "auto")
    tuning = Tuning(start, ["cpu"] * 2, [], DEFAULT, Path(), load, 1, 30, None, 9.0, None, False)
    return list(lines(tuning, Study(runs, LOSS, 30, False)))


def warnings(runs, load=0.0):
    return [line for line in printed(runs, load) if line.startswith("WARNING")]


def test_factors_above_the_number_of_workers_are_doubted():
    (warned,) = warnings(runs_of(plain=[(4, 3, 2)], default=[(2, 1, 1)]))
    assert "CenterMomentum() every 10 was 3.00 times sooner with 2 workers." in warned
    as_fast = runs_of(plain=[(4, 3, 2)], default=[(4, 3, 2)])
    assert warnings(as_fast) == []
    (warned,) = warnings(as_fast, load=1000.0)
    assert "the load was 1000.0" in warned


def test_a_method_that_is_not_the_default_is_written_as_code():
    text = "\n".join(printed(runs_of(plain=[(4, 3, 3)], default=[(4, 3, 3)], other=[(4, 3, 2)])))
    assert "rule=EASGD(), every_n_batches=4" in text
    assert 'PLATOON_RULE="EASGD()" PLATOON_EVERY_N_BATCHES=4 platoon launch -n 2 train.py' in text


@pytest.mark.parametrize("values", [(math.nan, 1e30, math.inf), (1.0,), (-math.inf,) * 3])
def test_any_values_and_names_are_drawn(values):
    pytest.importorskip("matplotlib", reason="needs matplotlib: `make setup` installs it")
    odd = Method(2, words=("--a=<&>$x$ \x01\udcff 損失",))
    runs = [*runs_of(plain=[(3, 2, 1), (3, 2)]), Run(odd, 0, curve(*values)), Run(OTHER, 0, [], failed="it died")]
    root = ElementTree.fromstring(picture(Study(runs, LOSS, 30, False), Watched("_<&>$", False)))
    texts = {each.text for each in root.iter() if each.tag.endswith("text")}
    assert {"_<&>$, lower is better", r"the script with --a=<&>$x$ \x01\udcff 損失"} <= texts
    assert OTHER.name not in texts
