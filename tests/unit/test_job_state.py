"""The control words and their ballots: the first reason to stop stays, each worker has its row, all see the same."""

import itertools
import math
import sys
import threading

import pytest

from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.schedule import STOP_POLICIES
from platoon_base.sharding import Position
from platoon_base.shm.job_state import ControlWords
from platoon_base.shm.stop_votes import Ballot

pytestmark = pytest.mark.base

ROWS = 4


@pytest.fixture
def memory():
    return bytearray(ControlWords.size_bytes(ROWS))


@pytest.fixture
def words(memory):
    return ControlWords(memory, rows=ROWS, create=True)


@pytest.fixture
def others(memory, words):
    """The words as another process attaches to them; how many rows there are is read from the memory."""
    return ControlWords(memory, rows=0, create=False)


def test_a_new_job_is_not_stopping(words, others):
    assert not words.stopping
    assert not others.stopping
    assert others.stop_reason == ""


def test_a_stop_is_seen_by_all(words, others):
    words.stop("epochs >= 10")
    assert others.stopping
    assert others.stop_reason == "epochs >= 10"


def test_the_first_reason_stays(words, others):
    others.stop("patience")
    words.stop("interrupted")
    assert words.stop_reason == others.stop_reason == "patience"


def test_a_job_may_stop_without_a_reason(words):
    words.stop("")
    assert words.stopping
    assert words.stop_reason == ""


@pytest.mark.parametrize("size", [255, 256, 257, 1000])
def test_a_long_reason_is_cut(words, size):
    words.stop("x" * size)
    assert words.stop_reason == "x" * min(size, 256)


def test_a_reason_is_not_cut_inside_a_letter(words):
    words.stop("x" + "é" * 200)  # 401 bytes: the 256th is the first half of a letter
    assert words.stop_reason == "x" + "é" * 127


def test_a_row_tells_nothing_before_its_worker_does(words):
    progress = words.progress(2)
    assert math.isnan(progress.loss)
    assert progress._replace(loss=0.0) == (0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


def test_what_a_worker_writes_to_its_row_is_seen_there_only(words, others):
    row = words.row(1)
    row["epoch"], row["steps"], row["loss"], row["updated"] = 3, 2**40, 0.25, 17.5
    progress = others.progress(1)
    assert (progress.epoch, progress.steps, progress.loss, progress.updated) == (3, 2**40, 0.25, 17.5)
    for rank in (0, 2, 3):
        assert others.progress(rank).steps == 0
        assert math.isnan(others.progress(rank).loss)
    assert not others.stopping


def test_a_row_is_plain_numbers(words):
    assert [type(value) for value in words.progress(0)] == [int] * 3 + [float] * 4 + [int]


def test_a_worker_that_joins_starts_its_row_anew(words):
    for rank in (1, 2):
        words.row(rank)["steps"], words.row(rank)["loss"] = 9, 0.5
    words.start_row(1)
    assert words.progress(1).steps == 0
    assert math.isnan(words.progress(1).loss)
    assert words.progress(2).steps == 9


def test_a_position_is_read_as_a_whole_while_it_is_written(words):
    """Also from the moment of a death in the middle of writing: the one before is still there."""
    row, stop = words.row(1), threading.Event()
    words.start_row(1, Position(0, 0, 0))

    def write():
        for n in itertools.count(1):
            row["epoch"], row["steps"], row["steps_before_epoch"] = n, 2 * n, n
            words.mark_synced(row)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {words.position(1) for _ in range(20_000)}
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
    assert all(position == (n, n, 2 * n) for position in seen for n in [position.epoch])


def test_a_worker_that_comes_again_goes_on_counting(words):
    words.start_row(1, Position(epoch=3, epoch_steps=4, steps=24))
    row = words.row(1)
    row["steps"] += 2
    assert words.position(1) == (3, 4, 24)
    assert words.progress(1).steps_before_start == 24
    words.mark_synced(row)
    row["steps"] += 1
    assert words.position(1) == (3, 6, 26)
    words.mark_all_synced(row)
    assert {words.position(rank) for rank in range(ROWS)} == {(3, 7, 27)}


def test_a_row_outside_is_refused(others):
    with pytest.raises(IndexError):
        others.row(ROWS)


@pytest.mark.parametrize("damage", [0, 7, 8], ids=["magic", "end of magic", "version"])
def test_the_words_of_another_version_are_refused(memory, words, damage):
    memory[damage] ^= 0x41
    with pytest.raises(ProtocolError, match="another version"):
        ControlWords(memory, rows=ROWS, create=False)


def test_memory_that_nobody_has_set_up_is_refused(memory):
    with pytest.raises(ProtocolError):
        ControlWords(memory, rows=ROWS, create=False)


def test_rows_do_not_share_bytes_with_the_header_or_each_other(memory, words):
    for rank in range(ROWS):
        words.row(rank)["epoch"], words.row(rank)["updated"] = rank + 1, rank + 0.5
    words.stop("y" * 256)
    assert [words.progress(rank)[::6] for rank in range(ROWS)] == [(rank + 1, rank + 0.5) for rank in range(ROWS)]
    assert words.stop_reason == "y" * 256


# Ballots.


@pytest.fixture
def ballots(words, others):
    """Ballot 1, as each rank sees it; every other one in another mapping of the words."""
    found = [Ballot((words, others)[rank % 2], rank) for rank in range(ROWS)]
    for ballot in found:
        ballot.open(1)
    return found


def seen(ballots):
    """Return what all see, who must see the same."""
    views = [ballot.voters() for ballot in ballots]
    assert all(view == views[0] for view in views)
    return views[0]


def test_a_vote_is_seen_by_all(ballots):
    assert seen(ballots) == set()
    ballots[2].cast()
    ballots[2].cast()
    assert seen(ballots) == {2}
    for rank in range(ROWS):
        ballots[rank].cast()
    assert seen(ballots) == set(range(ROWS))
    assert {type(rank) for rank in seen(ballots)} == {int}


def test_votes_are_of_one_ballot(ballots):
    ballots[0].cast()
    ballots[1].cast()
    ballots[0].open(2)
    assert ballots[0].voters() == set()
    assert seen(ballots[1:]) == {0, 1}, "those who are slower still see both votes"
    ballots[0].cast()
    assert ballots[0].voters() == {0}
    assert seen(ballots[1:]) == {1}
    for ballot in ballots[1:]:
        ballot.open(2)
    assert seen(ballots) == {0}


def test_a_ballot_opened_again_begins_without_the_own_vote(ballots):
    ballots[0].cast()
    ballots[1].cast()
    ballots[0].open(1)
    assert seen(ballots) == {1}


def test_a_worker_that_joins_has_not_voted(words, ballots):
    ballots[3].cast()
    words.start_row(3)
    assert seen(ballots) == set()


@pytest.mark.parametrize(
    ("policy", "voters", "members", "expected"),
    [
        ("any", [3], {0, 1, 2}, False),
        ("any", [2, 3], {0, 1, 2}, True),
        ("all", [0, 1, 3], [0, 1, 2], False),
        ("all", [0, 1, 2], (0, 1, 2), True),
        ("leader", [0, 2], {1, 2}, False),
        ("leader", [1], {1, 2}, True),
    ],
)
def test_a_ballot_is_decided_by_its_policy_and_those_present(ballots, policy, voters, members, expected):
    for rank in voters:
        ballots[rank].cast()
    assert [ballot.passed(policy, members) for ballot in ballots] == [expected] * ROWS


@pytest.mark.parametrize("policy", STOP_POLICIES)
def test_without_votes_nothing_passes(ballots, policy):
    assert not ballots[0].passed(policy, range(ROWS))


def test_an_unknown_policy_is_refused(ballots):
    with pytest.raises(ConfigurationError, match="policy"):
        ballots[0].passed("most", {0})


@pytest.mark.parametrize("call", [Ballot.cast, Ballot.voters, lambda ballot: ballot.passed("any", {0})])
def test_before_a_ballot_is_open_there_is_nothing_to_vote_on(words, call):
    with pytest.raises(ConfigurationError, match="open"):
        call(Ballot(words, 0))


@pytest.mark.parametrize("number", [0, -1, 1.0, True, None])
def test_a_ballot_needs_a_number(ballots, number):
    with pytest.raises(ConfigurationError, match="counted from 1"):
        ballots[0].open(number)


def test_ballots_and_rows_do_not_share_bytes(memory, words, ballots):
    words.write_text(ROWS - 1, "ending", "z" * 256)
    for ballot in ballots:
        ballot.open(2**62)
        ballot.cast()
    assert words.read_text(ROWS - 1, "ending") == "z" * 256
    assert [words.progress(rank).epoch for rank in range(ROWS)] == [0] * ROWS
    assert bytes(memory[-8:]) == (2**62).to_bytes(8, "little")


def test_a_row_that_is_started_again_has_its_position_at_every_moment(words, others):
    """A checkpoint may be written in any instant: read as another process would, after every single instruction."""
    position = Position(epoch=3, epoch_steps=40, steps=340)
    words.start_row(1, position)
    seen = set()

    def look(frame, event, arg):
        frame.f_trace_opcodes = True
        seen.add(others.position(1))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        words.start_row(1, position)
    finally:
        sys.settrace(before)
    assert seen == {position}
    assert words.progress(1)[:3] == (3, 340, 0)
    assert words.progress(1).steps_before_start == 340


def test_a_new_position_is_written_beside_the_latest(words):
    """Another process may read in the midst of the write: what it finds under the old slot is whole."""
    words.start_row(1, Position(epoch=3, epoch_steps=40, steps=340))
    row = words.row(1)
    slot, latest = int(row["synced_slot"]), row["synced"][row["synced_slot"]].tolist()
    row["steps"] += 5
    words.mark_synced(row)
    assert row["synced"][slot].tolist() == latest
    assert words.position(1) == Position(epoch=3, epoch_steps=45, steps=345)
