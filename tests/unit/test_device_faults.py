"""When a collective on devices counts as lost: each case by hand."""

import math

import pytest

from platoon_base.collectives.device_faults import SETTLED_S, find_fault
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.shm.liveness import Call, sign

pytestmark = pytest.mark.base

SAME = sign(0, 11, 1000)
MINE = Call(number=5, signature=SAME, begun=100.0, deadline=400.0)


class Others:
    """Two other ranks, as the job's state and the kernel's locks would show them."""

    def __init__(self, calls, dead=(), absent="", moved=-math.inf):
        self.calls, self.dead, self.absent, self.last = calls, dead, absent, moved

    def moved(self, ranks):
        return self.last

    def latest_call(self, rank):
        return self.calls[rank]

    def died(self, rank):
        return rank in self.dead

    def why_absent(self, ranks):
        return self.absent if self.absent or not set(ranks) & set(self.dead) else f"rank {min(ranks)} is lost"


def look(first=MINE, second=MINE, now=101.0, mine=MINE, **others):
    return find_fault(mine, [1, 2], Others({1: Call.of(first.word), 2: Call.of(second.word)}, **others), now)


def test_a_word_holds_number_and_signature():
    call = Call.of(Call(1 << 38, SAME).word)
    assert (call.number, call.signature) == (1 << 38, SAME)
    assert Call(1 << 38, SAME).word < 2**63
    assert len({sign(kind, code, size) for kind in (0, 1, 8, 33) for code in (1, 11) for size in (1, 2)}) == 16


def test_nothing_is_wrong_while_all_may_come():
    assert look() is None
    assert look(first=Call(4, 0), second=Call(7, 0)) is None  # one has not come yet, one is far ahead
    assert look(first=Call(4, 0), now=399.0) is None
    assert look(now=1e9) is None  # all have begun: the device may long have completed it
    assert look(mine=Call(0, 0), dead=[1]) is None  # no call, nothing lost


def test_a_rank_that_is_slow_is_not_missing():
    assert look(first=Call(4, 0), now=690.0, moved=391.0) is None  # the call may take 300 s
    fault = look(first=Call(4, 0), now=692.0, moved=391.0)
    assert isinstance(fault.error, CollectiveTimeoutError)
    assert "rank 1 (no progress" in str(fault.error)


@pytest.mark.parametrize(
    ("seen", "error", "words", "interrupt"),
    [
        ({"first": Call(4, 0), "absent": "rank 1 has left"}, WorkerLostError, ["number 5", "rank 1 has left"], True),
        ({"dead": [2], "now": 101.0}, WorkerLostError, [], True),  # its part may be missing
        ({"dead": [2], "now": 100.1 + SETTLED_S}, WorkerLostError, [], False),  # only this group is lost
        ({"second": Call(4, 0), "now": 401.0}, CollectiveTimeoutError, ["rank 2"], True),
        ({"second": Call(5, sign(0, 11, 999))}, ConfigurationError, ["rank 2"], True),
    ],
    ids=["will never make it", "died in it", "died long after it had begun it", "past the deadline", "another call"],
)
def test_a_rank_without_which_the_call_cannot_complete(seen, error, words, interrupt):
    fault = look(**seen)
    assert isinstance(fault.error, error)
    assert all(word in str(fault.error) for word in words)
    assert fault.interrupt == interrupt


def test_another_call_of_a_rank_that_is_further_on_is_no_fault():
    assert look(second=Call(6, sign(0, 11, 999))) is None
