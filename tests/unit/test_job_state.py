"""The state of a job: the first reason to stop stays, each worker has its row, all processes see the same."""

import itertools
import math
import threading
import time

import numpy as np
import pytest
from interrupting import at_each_instruction

from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.sharding import Position
from platoon_base.shm.job_state import MIRRORED, JobState, StopVotes, copied_rows, put_rows
from platoon_base.shm.liveness import ProgressWatch, stalled_text

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
    """The state as another process attaches to it; how many rows there are is read from the memory."""
    return JobState(memory, rows=0, create=False)


def test_the_first_reason_stays(job_state, others):
    others.stop("patience")
    job_state.stop("interrupted")
    assert job_state.stop_reason == others.stop_reason == "patience"


def test_a_reason_is_not_cut_inside_a_letter(job_state):
    job_state.stop("x" + "é" * 200)  # 401 bytes: the 256th is the first half of a letter
    assert job_state.stop_reason == "x" + "é" * 127


def test_what_a_worker_writes_to_its_row_is_seen_there_only(job_state, others):
    row = job_state.row(1)
    row["epoch"], row["steps"], row["loss"], row["updated"] = 3, 2**40, 0.25, 17.5
    progress = others.progress(1)
    assert (progress.epoch, progress.steps, progress.loss, progress.updated) == (3, 2**40, 0.25, 17.5)
    for rank in (0, 2, 3):
        assert others.progress(rank).steps == 0
        assert math.isnan(others.progress(rank).loss)
    assert not others.stopping


def test_a_position_is_read_as_a_whole_while_it_is_written(job_state):
    """Also from the moment of a death in the middle of writing: the one before is still there."""
    row, stop = job_state.row(1), threading.Event()
    job_state.start_row(1, Position(0, 0, 0))

    def write():
        for n in itertools.count(1):
            row["epoch"], row["steps"], row["steps_before_epoch"] = n, 2 * n, n
            job_state.mark_synced(row)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {job_state.position(1) for _ in range(20_000)}
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
    assert all(position == (n, n, 2 * n) for position in seen for n in [position.epoch])


def test_a_worker_that_comes_again_goes_on_counting(job_state):
    job_state.start_row(1, Position(epoch=3, epoch_steps=4, steps=24))
    row = job_state.row(1)
    row["steps"] += 2
    assert job_state.position(1) == (3, 4, 24)
    assert job_state.progress(1).steps_before_start == 24
    job_state.mark_synced(row)
    row["steps"] += 1
    assert job_state.position(1) == (3, 6, 26)
    job_state.mark_all_synced(row)
    assert {job_state.position(rank) for rank in range(ROWS)} == {(3, 7, 27)}


@pytest.mark.parametrize("damage", [0, 7, 8], ids=["magic", "end of magic", "version"])
def test_the_state_of_another_version_is_refused(memory, job_state, damage):
    memory[damage] ^= 0x41
    with pytest.raises(ProtocolError, match="another version"):
        JobState(memory, rows=ROWS, create=False)


def test_rows_do_not_share_bytes_with_the_header_or_each_other(memory, job_state):
    for rank in range(ROWS):
        job_state.row(rank)["epoch"], job_state.row(rank)["updated"] = rank + 1, rank + 0.5
    job_state.stop("y" * 256)
    assert [job_state.progress(rank)[:7:6] for rank in range(ROWS)] == [(rank + 1, rank + 0.5) for rank in range(ROWS)]
    assert job_state.stop_reason == "y" * 256


def test_a_row_that_is_started_again_has_its_position_at_every_moment(job_state, others):
    """A checkpoint may be written in any instant: read as another process would, after every single instruction."""
    position = Position(epoch=3, epoch_steps=40, steps=340)
    job_state.start_row(1, position)
    seen = set()

    at_each_instruction(lambda: job_state.start_row(1, position), lambda: seen.add(others.position(1)))
    assert seen == {position}
    assert job_state.progress(1)[:3] == (3, 340, 0)
    assert job_state.progress(1).steps_before_start == 340


def test_a_new_position_is_written_beside_the_latest(job_state):
    """Another process may read in the midst of the write: what it finds under the old slot is whole."""
    job_state.start_row(1, Position(epoch=3, epoch_steps=40, steps=340))
    row = job_state.row(1)
    slot, latest = int(row["synced_slot"]), row["synced"][row["synced_slot"]].tolist()
    row["steps"] += 5
    job_state.mark_synced(row)
    assert row["synced"][slot].tolist() == latest
    assert job_state.position(1) == Position(epoch=3, epoch_steps=45, steps=345)


def test_a_worker_that_goes_on_is_seen_to_move(job_state):
    progress_watch = ProgressWatch(job_state)
    assert progress_watch.last(1) == -math.inf
    for number, sign in enumerate(("epoch", "steps", "syncs", "copies", "collectives", "waits", "lives"), 1):
        job_state.row(1)[sign] += 1
        progress_watch.poll(1e9 * number)
        assert progress_watch.last(1) == 1e9 * number, sign
        progress_watch.poll(1e9 * number + 10)
        assert progress_watch.last(1) == 1e9 * number
    assert progress_watch.last(2) == -math.inf


def test_the_time_of_a_step_counts_before_the_first_look(job_state):
    job_state.row(1)["updated"] = time.monotonic() - 42
    progress_watch = ProgressWatch(job_state)
    assert stalled_text(progress_watch.last(1)) == "no progress for 42 s"
    assert stalled_text(progress_watch.last(2)) == "no progress so far"


def filled(job_state, rank, number):
    """Give every field of a row a value of its own."""
    row = job_state.row(rank)
    for i, name in enumerate(row.dtype.names):
        row[name] = f"text {number + i}".encode() if row.dtype[name].kind == "S" else number + i
    job_state.stop_votes[rank] = number


def test_a_mirrored_row_is_the_beginning_of_a_row(job_state):
    mirrored, row = MIRRORED["row"], job_state.row(0).dtype
    assert {name: mirrored.fields[name] for name in mirrored.names} == {
        name: row.fields[name] for name in row.names if name not in ("ending", "phase_counts", "turn_clock", "round")
    }
    assert MIRRORED.itemsize % 8 == mirrored.itemsize % 8 == 0


def test_mirrored_rows_arrive_whole_with_their_times_on_this_hosts_clock(job_state):
    there = JobState(bytearray(JobState.size_bytes(ROWS)), ROWS, create=True)
    for rank in range(ROWS):
        filled(there, rank, 10 * rank)
    there.row(2)["started"] = 0.0  # not begun
    before = bytes(job_state.row(0)), bytes(job_state.row(3))
    put_rows(job_state, [2, 1], copied_rows(there, [2, 1]), 1000.0)
    for rank in (1, 2):
        for name in MIRRORED["row"].names:
            shift = 1000.0 if name in ("started", "updated", "waited_at") else 0
            expected = there.row(rank)[name]
            if shift and expected:
                expected = expected + shift
            assert np.array_equal(job_state.row(rank)[name], expected), name
        assert job_state.stop_votes[rank] == 10 * rank
    assert job_state.row(2)["started"] == 0.0
    assert (bytes(job_state.row(0)), bytes(job_state.row(3))) == before
    assert job_state.stop_votes[0] == job_state.stop_votes[3] == 0


def test_a_mirrored_row_of_a_new_process_removes_the_ending_of_the_old_one(job_state):
    there = JobState(bytearray(JobState.size_bytes(ROWS)), ROWS, create=True)
    for rank in (0, 1):
        job_state.write_text(rank, "ending", "killed")
    there.row(1)["lives"] = 1
    put_rows(job_state, [0, 1], copied_rows(there, [0, 1]), 0.0)
    assert [job_state.read_text(rank, "ending") for rank in (0, 1)] == ["killed", ""]


# Votes to stop: each holds for one round, all workers see the same votes, and a policy decides.


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
