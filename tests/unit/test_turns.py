"""Whose turn it is, by the state of a job in memory."""

import pytest

from platoon_base.errors import WorkerLostError
from platoon_base.shm.job_state import JobState
from platoon_base.shm.turns import Turns

pytestmark = pytest.mark.base


@pytest.fixture
def job_state():
    return JobState(bytearray(JobState.size_bytes(2)), 2, create=True)


def turns_of(job_state, rank):
    return Turns(job_state, rank, 2, lambda: True, lambda: None)


def test_a_worker_that_waits_for_all_is_ahead_of_one_in_rounds(job_state):
    first, second = turns_of(job_state, 0), turns_of(job_state, 1)
    first.meet()  # it has no more rounds to make
    for _ in range(3):
        second.begin("contribute", 0.0)
        second.end()
        second.meet(every=False)
        second.begin("step", 0.0)
        second.end()


def test_an_interrupted_worker_may_save_though_the_one_before_it_has_ended(job_state):
    turns = turns_of(job_state, 1)
    job_state.write_text(0, "ending", "SIGINT")
    with pytest.raises(WorkerLostError, match="lost"):
        turns.begin("read", 5.0)
    job_state.stop("SIGINT")
    turns.begin("read", 5.0)
    turns.end()
