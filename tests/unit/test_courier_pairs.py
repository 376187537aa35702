"""The numbered exchanges of two hosts, in any order of events; real couriers are in contract/test_courier.py."""

import random
from collections import deque

import pytest

from platoon_base.courier.background import OwnCopy, Pair
from platoon_base.links.stream import BrokenStreamError

pytestmark = pytest.mark.base


def copy_of(values):
    return OwnCopy(memoryview(b""), values, 0, 0, 1, 2, True)


class Courier:
    """One end of a link: speaks as `BackgroundExchanges` does, and notes the two copies of each exchange it makes."""

    def __init__(self, name, life):
        self.name, self.pair, self.copies, self.made = name, Pair(life), 0, {}
        self.inbox, self.outbox = deque(), deque()
        self.open = False

    def connect(self, inbox, outbox):
        self.inbox, self.outbox, self.open, self.answer = inbox, outbox, True, None
        self.pair.connect()
        self.send("life", self.pair.life)

    def send(self, *record):
        self.outbox.append(record)

    def send_answer(self):
        self.pair.is_sent = True
        self.send("answer", self.pair.number, None if self.pair.own is None else self.pair.own.values)

    def begin(self):
        if self.open and self.pair.is_idle:
            self.copies += 1
            self.pair.answer(copy_of((self.name, self.pair.life, self.copies)))
            self.send_answer()

    def decline(self):
        if self.open and self.pair.is_idle and self.answer is not None:
            self.pair.answer(None)
            self.send_answer()

    def receive(self):
        if not self.inbox:
            return
        kind, *content = self.inbox.popleft()
        pair = self.pair
        if kind == "life":
            pair.meet(*content)
            self.send("has", pair.received)
        elif kind == "has":
            pair.take_acknowledgement(*content)
            if pair.must_send:
                self.send_answer()
        else:
            pair.require(content[0])
            self.answer = content

    def use(self):
        if self.open and self.answer is not None and self.pair.has_answered:
            number, theirs = self.answer
            if theirs is not None and self.pair.own is not None:
                self.made[self.pair.own.values] = theirs
            self.answer = None
            self.pair.take_answer()
            self.send("has", number)


@pytest.mark.parametrize("seed", range(200))
def test_both_hosts_make_the_same_exchanges_whatever_breaks(seed):
    chance = random.Random(seed)
    one, two = ends = [Courier("one", 1), Courier("two", 2)]
    for _ in range(400):
        event = chance.choice(["link", *4 * ["receive", "use", "begin"], "decline", "nothing"])
        if event == "link":  # what is under way is lost, also on one side first
            there, back = deque(), deque()
            for end, ways in zip(ends, ((there, back), (back, there))):
                end.connect(*ways)
        elif event != "nothing":
            getattr(chance.choice(ends), event)()
    there, back = deque(), deque()
    for end, ways in zip(ends, ((there, back), (back, there))):
        end.connect(*ways)
    for _ in range(20):
        for end in ends:
            end.receive()
            end.use()
            end.decline()
    assert two.made == {theirs: own for own, theirs in one.made.items()}
    assert len(set(one.made.values())) == len(one.made)  # none is used twice
    assert not one.pair.waits
    assert not two.pair.waits


def test_a_courier_that_is_started_again_begins_anew_on_both_hosts():
    one, two = Pair(1), Pair(2)
    for pair, life in ((one, 2), (two, 1)):
        pair.connect()
        assert pair.meet(life)
    one.take_acknowledgement(0)
    one.answer(copy_of("a"))
    again = Pair(3)
    for pair, life in ((one, 3), (again, 1)):
        pair.connect()
        assert pair.meet(life)
        pair.take_acknowledgement(0)
    assert one.is_idle
    assert (one.number, again.number) == (1, 1)


def test_what_belongs_to_no_exchange_is_refused():
    pair = Pair(1)
    pair.connect()
    pair.meet(2)
    with pytest.raises(BrokenStreamError, match="acknowledged"):
        pair.take_acknowledgement(1)
    with pytest.raises(BrokenStreamError, match="copy of exchange 2"):
        pair.require(2)
    pair.take_answer()
    with pytest.raises(BrokenStreamError, match="copy of exchange 1"):
        pair.require(1)
