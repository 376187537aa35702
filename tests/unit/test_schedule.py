"""When to synchronize and when to stop: sequences written out by hand."""

import math

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.schedule import (
    STOP_POLICIES,
    Limits,
    Patience,
    part_is_over,
    require_period,
    require_policy,
    votes_suffice,
)

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    ("n", "part", "expected"), [(1, 0.5, ".HHH"), (2, 0.5, ".HHH"), (4, 0.5, "..HH"), (4, 0.9, "...H")]
)
def test_a_part_of_a_period_is_over(n, part, expected):
    assert "".join("H" if part_is_over(part, count, n) else "." for count in range(4)) == expected


@pytest.mark.parametrize("n", [0, -1, 1.5, True, False, "3"])
def test_a_period_that_counts_nothing_is_refused(n):
    with pytest.raises(ConfigurationError, match="period"):
        require_period(n)


def test_patience_waits_for_reports_without_improvement():
    patience = Patience(2)
    told = [(patience.improved(value), patience.exhausted) for value in [5.0, 4.0, 4.0, 3.0, 3.5, 3.0]]
    assert told == [(True, False), (True, False), (False, False), (True, False), (False, False), (False, True)]
    assert patience.best == 3.0


@pytest.mark.parametrize(("mode", "values"), [("min", [1.0, 0.75, 0.5, 0.25]), ("max", [1.0, 1.25, 1.5, 1.75])])
def test_a_change_by_min_delta_is_no_improvement(mode, values):
    patience = Patience(9, min_delta=0.25, mode=mode)
    assert [patience.improved(value) for value in values] == [True, False, True, False]


def test_nan_is_never_the_best():
    patience = Patience(3)
    assert not patience.improved(math.nan)
    assert patience.waited == 1
    assert patience.improved(2.0)
    assert not patience.improved(math.nan)
    assert patience.best == 2.0


def test_reports_of_nan_alone_exhaust_patience():
    patience = Patience(2)
    assert [patience.improved(math.nan) or patience.exhausted for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 0}, "patience=0"),
        ({"patience": 1, "min_delta": -1}, "min_delta=-1"),
        ({"patience": 1, "min_delta": math.nan}, "min_delta=nan"),
        ({"patience": 1, "mode": "best"}, "'min' or 'max'"),
    ],
)
def test_patience_that_cannot_work_is_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        Patience(**options)


@pytest.mark.parametrize(
    ("limits", "counters", "expected"),
    [
        ({}, {"epochs": 10**9, "batches": 10**9, "seconds": 1e9}, None),
        ({"epochs": 10}, {"epochs": 9}, None),
        ({"epochs": 10}, {"epochs": 10}, "epochs >= 10"),
        ({"batches": 5}, {"batches": 7}, "batches >= 5"),
        ({"seconds": 2.5}, {"seconds": 2.5}, "seconds >= 2.5"),
        ({"epochs": 10, "batches": 5}, {"epochs": 3, "batches": 5}, "batches >= 5"),
        ({"epochs": 1, "batches": 1}, {"epochs": 1, "batches": 1}, "epochs >= 1"),
    ],
)
def test_the_first_limit_reached_is_named(limits, counters, expected):
    assert Limits(**limits).reached(**counters) == expected


@pytest.mark.parametrize("name", ["epochs", "batches", "seconds"])
@pytest.mark.parametrize("value", [0, -3, math.nan])
def test_a_limit_that_is_reached_before_the_start_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=f"{name}="):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("policy", "voters", "members", "expected"),
    [
        ("any", set(), {0, 1}, False),
        ("any", {1}, {0, 1}, True),
        ("any", {2}, {0, 1}, False),
        ("all", {0}, {0, 1}, False),
        ("all", {0, 1}, {0, 1}, True),
        ("all", {0, 2}, {0, 1}, False),
        ("all", {0, 2}, {0}, True),
        ("leader", {1}, {0, 1}, False),
        ("leader", {0}, {0, 1}, True),
        ("leader", {0}, {1, 2}, False),
        ("leader", {1}, {1, 2}, True),
    ],
)
def test_votes(policy, voters, members, expected):
    assert votes_suffice(policy, voters, members) is expected


@pytest.mark.parametrize("policy", STOP_POLICIES)
def test_nobody_stops_a_job_without_members(policy):
    assert not votes_suffice(policy, {0}, set())


def test_an_unknown_policy_is_refused():
    for call in (require_policy, lambda policy: votes_suffice(policy, {0}, {0})):
        with pytest.raises(ConfigurationError, match="got policy='most': it must be one of any, all, leader"):
            call("most")
