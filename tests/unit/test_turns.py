"""Whose turn it is, by the state of a job in memory."""

import pytest

from platoon_base.errors import WorkerLostError
from platoon_base.shm.job_state import JobState
from platoon_base.shm.turns import ByRank, Replaying, Turns

pytestmark = pytest.mark.base


@pytest.fixture
def job_state():
    return JobState(bytearray(JobState.size_bytes(2)), 2, create=True)


def turns_of(job_state, rank, policy=None):
    policy = ByRank(job_state, rank, 2) if policy is None else policy
    return Turns(job_state, rank, policy, lambda: True, lambda: None)


def test_a_worker_that_waits_for_all_is_ahead_of_one_in_rounds(job_state):
    first, second = turns_of(job_state, 0), turns_of(job_state, 1)
    first.meet()  # it has no more rounds to make
    for _ in range(3):
        second.begin("contribute", 0.0)
        second.end("contribute")
        second.meet(every=False)
        second.begin("step", 0.0)
        second.end("step")


@pytest.mark.parametrize("replays", [False, True])
def test_an_interrupted_worker_may_save_though_the_one_before_it_has_ended(job_state, replays):
    policy = Replaying(job_state, 1, [(0, "sync"), (1, "read")], "the order") if replays else None
    turns = turns_of(job_state, 1, policy)
    job_state.write_text(0, "ending", "SIGINT")
    with pytest.raises(WorkerLostError, match="lost"):
        turns.begin("read", 5.0)
    job_state.stop("SIGINT")
    turns.begin("read", 5.0)
    turns.end("read")
