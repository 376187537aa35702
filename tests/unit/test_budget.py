"""The budget of a run: one order to stop, one to end."""

import pytest

from platoon_base.coordination.stopping import Budget, BudgetWatch, Spent
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import Limits

pytestmark = pytest.mark.base


def orders(budget, *looks):
    watch = BudgetWatch(budget)
    return [watch.poll(Spent(*look)).name for look in looks], watch.reason


@pytest.mark.parametrize(
    ("limits", "reason"), [(Limits(batches=10), "batches >= 10"), (Limits(seconds=5), "seconds >= 5")]
)
def test_a_run_is_stopped_once_and_ended_when_its_overtime_is_over(limits, reason):
    looks = [(9.9, 4.9, 20), (10, 5, 21), (11, 6, 22), (12, 7, 50.9), (12, 7, 51), (12, 7, 99)]
    assert orders(Budget(limits, overtime_s=30), *looks) == (
        ["GO_ON", "STOP", "GO_ON", "GO_ON", "END", "GO_ON"],
        reason,
    )


def test_a_run_that_does_not_begin_is_ended_too():
    looks = [(0, 0, 9.9), (0, 0, 10), (0, 0, 11)]
    assert orders(Budget(Limits(batches=5), run_s=10), *looks) == (["GO_ON", "END", "GO_ON"], "no end within 10 s")


def test_the_first_reason_stays():
    looks = [(5, 1, 8), (5, 1, 10)]
    assert orders(Budget(Limits(batches=5), run_s=10), *looks) == (["STOP", "END"], "batches >= 5")


def test_a_verdict_stops_a_run_before_its_limits():
    verdicts = iter(["", "dropped", "dropped"])
    budget = Budget(Limits(batches=5), overtime_s=30, verdict=lambda: next(verdicts))
    looks = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (9, 32, 32)]
    assert orders(budget, *looks) == (["GO_ON", "STOP", "GO_ON", "END"], "dropped")


def test_without_a_limit_a_run_goes_on():
    assert orders(Budget(Limits()), (1e9, 1e9, 1e9)) == (["GO_ON"], "")


@pytest.mark.parametrize("wrong", [{"overtime_s": -1}, {"run_s": float("nan")}])
def test_seconds_must_be_numbers(wrong):
    with pytest.raises(ConfigurationError, match="0 or more"):
        BudgetWatch(Budget(Limits(), **wrong))
