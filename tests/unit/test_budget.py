"""The budget of a run: one order to stop, one to end."""

import pytest
from asking import DONE, Job, hello, replies, stops, vote

from platoon_base.coordination import messages as msg
from platoon_base.coordination.stopping import Budget, BudgetWatch, Spent
from platoon_base.errors import ConfigurationError
from platoon_base.schedule import Limits
from platoon_base.sharding import Position

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


# Votes that the coordinator counts.


@pytest.mark.parametrize(
    ("policy", "voters", "decided_by"),
    [("any", [2], 2), ("all", [1, 0, 2], 2), ("leader", [1, 2, 0], 0)],
)
def test_votes_decide_by_policy(policy, voters, decided_by):
    job = Job(3).join(0, 1, 2)
    for rank in voters:
        actions = job.ask(rank, vote(policy, f"rank {rank}"))
        assert replies(actions) == {str(rank): DONE}
        assert stops(actions) == ([f"rank {rank}"] if rank == decided_by else [])
    assert job.coordinator.stop_reason == f"rank {decided_by}"


def test_a_job_stops_once():
    job = Job(2).join(0, 1)
    assert stops(job.ask(0, vote("any", "first"))) == ["first"]
    assert stops(job.ask(1, vote("any", "second"))) == []
    assert job.coordinator.stop_reason == "first"


@pytest.mark.parametrize("end", ["leaves", "is lost"])
@pytest.mark.parametrize("policy", ["all", "leader"])
def test_a_departure_may_decide(policy, end):
    job = Job(3).join(0, 1, 2)
    assert stops(job.ask(1, vote(policy))) == []
    if policy == "all":
        assert stops(job.ask(2, vote(policy))) == []
    actions = job.ask(0, msg.Leave()) if end == "leaves" else job.coordinator.worker_ended(0, lost=True)
    assert stops(actions) == ["done"]


def test_the_vote_of_one_that_left_does_not_count():
    job = Job(3).join(0, 1, 2)
    job.ask(2, vote("all"))
    job.ask(2, msg.Leave())
    assert stops(job.ask(0, vote("all"))) == []
    assert stops(job.ask(1, vote("all"))) == ["done"]


def test_who_takes_a_rank_over_has_not_voted():
    job = Job(2).join(0, 1)
    job.ask(1, vote("all"))
    job.coordinator.worker_ended(1, lost=True)
    job.answer("again", hello(rank=1))
    assert stops(job.ask(0, vote("all"))) == []


@pytest.mark.parametrize("policy", ["any", "all", "leader"])
def test_the_vote_of_one_that_came_again_counts(policy):
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(0, lost=True)
    job.coordinator.readmit(0, Position())
    job.answer("again", hello(rank=0))
    if policy == "all":
        assert stops(job.ask(1, msg.StopVote(reason="enough", policy=policy))) == ["enough"]
    else:
        assert stops(job.ask("again", msg.StopVote(reason="enough", policy=policy))) == ["enough"]
