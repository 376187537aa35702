"""Votes to stop: each holds for one round, all workers see the same votes, and a policy decides."""

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.shm.job_state import JobState, StopVotes

pytestmark = pytest.mark.base

ROWS = 4


@pytest.fixture
def memory():
    return bytearray(JobState.size_bytes(ROWS))


@pytest.fixture
def job_state(memory):
    return JobState(memory, rows=ROWS, create=True)


@pytest.fixture
def others(memory, job_state):
    """The state as another process attaches to it."""
    return JobState(memory, rows=0, create=False)


@pytest.fixture
def ranks(job_state, others):
    """Round 1, as each rank sees it; every other rank in another mapping of the memory."""
    found = [StopVotes((job_state, others)[rank % 2], rank) for rank in range(ROWS)]
    for votes in found:
        votes.open(1)
    return found


def seen(ranks):
    """Return what all see, who must see the same."""
    views = [votes.voters() for votes in ranks]
    assert all(view == views[0] for view in views)
    return views[0]


def test_a_vote_is_seen_by_all(ranks):
    assert seen(ranks) == set()
    ranks[2].cast()
    ranks[2].cast()
    assert seen(ranks) == {2}
    for rank in range(ROWS):
        ranks[rank].cast()
    assert seen(ranks) == set(range(ROWS))
    assert {type(rank) for rank in seen(ranks)} == {int}


def test_votes_are_of_one_round(ranks):
    ranks[0].cast()
    ranks[1].cast()
    ranks[0].open(2)
    assert ranks[0].voters() == set()
    assert seen(ranks[1:]) == {0, 1}, "those who are slower still see both votes"
    ranks[0].cast()
    assert ranks[0].voters() == {0}
    assert seen(ranks[1:]) == {1}
    for votes in ranks[1:]:
        votes.open(2)
    assert seen(ranks) == {0}


def test_a_worker_that_joins_has_not_voted(job_state, ranks):
    ranks[3].cast()
    job_state.start_row(3)
    assert seen(ranks) == set()


@pytest.mark.parametrize(
    ("policy", "voters", "participants", "expected"),
    [
        ("any", [3], {0, 1, 2}, False),
        ("any", [2, 3], {0, 1, 2}, True),
        ("all", [0, 1, 3], [0, 1, 2], False),
        ("all", [0, 1, 2], (0, 1, 2), True),
        ("leader", [0, 2], {1, 2}, False),
        ("leader", [1], {1, 2}, True),
    ],
)
def test_a_round_is_decided_by_its_policy_and_those_present(ranks, policy, voters, participants, expected):
    for rank in voters:
        ranks[rank].cast()
    assert [votes.passed(policy, participants) for votes in ranks] == [expected] * ROWS


@pytest.mark.parametrize("call", [StopVotes.cast, StopVotes.voters, lambda votes: votes.passed("any", {0})])
def test_before_a_round_is_open_there_is_nothing_to_vote_on(job_state, call):
    with pytest.raises(ConfigurationError, match="open"):
        call(StopVotes(job_state, 0))


@pytest.mark.parametrize("number", [0, -1, 1.0, True, None])
def test_a_round_needs_a_number(ranks, number):
    with pytest.raises(ConfigurationError, match="counted from 1"):
        ranks[0].open(number)
