"""The vote on the end of the job, by policy, whoever comes or goes."""

import pytest
from asking import DONE, Job, hello, replies, stops, vote

from platoon_base.coordination import messages as msg
from platoon_base.sharding import Position

pytestmark = pytest.mark.base


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
