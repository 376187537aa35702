"""What the launcher of the first host lets couriers know: it is sent when it changes, and only then."""

import pytest
from asking import hello

from platoon_base.coordination.actions import CenterMade, RoundReached, Shared
from platoon_base.coordination.roster import Roster, relayed_peer
from platoon_base.courier.messages import Combine, Gather, Gathered, LeftOut, Listening
from platoon_base.hosts import World
from platoon_base.job.files import JobFiles
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.links.peer import Peer
from platoon_base.multihost import courier_table
from platoon_base.multihost import messages as between
from platoon_base.multihost.courier_table import CourierTable, Member, RoundTable
from platoon_base.multihost.couriers import CourierKeeper

pytestmark = pytest.mark.base

WORLD = World([1, 1, 1], 0, ["a", "b", "c"], ["127.0.0.1"] * 3)


class Table:
    """A table of three hosts, whose couriers listen; the orders to the other hosts are kept."""

    def __init__(self, files):
        self.roster = Roster(3, 0, world=WORLD)
        arrived = between.Arrive(1, "", 3, 1, "", [], "", 1)
        members = {host: Member(host, "", Peer(bytes(16), bytes(16)), arrived) for host in (1, 2)}
        self.orders, self.given_up = [], []
        self.table = CourierTable(files, WORLD, self.roster, members, self.keep, lambda host: None, self.give_up)
        for host in range(3):
            self.table.handle_news(host, Listening("127.0.0.1", 1, "00"))

    def keep(self, member, message):
        self.orders.append((member.host, message))

    def give_up(self, host, why):
        self.given_up.append((host, why))
        self.table.mark_lost(host)

    def numbers(self):
        """Return what the hosts were sent of the workers of each host since the last call; each gets the same."""
        self.table.flush()
        sent, self.orders = self.orders, []
        assert [host for host, _ in sent] in ([], [1, 2])
        return [list(message.workers.values()) for _, message in sent[:1]]

    def leaves(self, rank):
        self.roster.depart(self.roster[rank], lost=False)


@pytest.fixture
def table():
    files = JobFiles(size=3, world=WORLD).create()
    try:
        yield Table(files)
    finally:
        files.remove()


def test_couriers_learn_the_number_of_living_workers_of_each_host_when_it_changes(table):
    assert table.numbers() == [[1, 1, 1]]
    assert table.numbers() == []
    table.leaves(1)
    assert table.numbers() == [[1, 0, 1]]
    assert table.numbers() == []


def test_couriers_learn_it_also_if_a_worker_that_was_expected_on_one_host_joins_on_another(table):
    assert table.numbers() == [[1, 1, 1]]
    table.roster.join(hello(rank=1), relayed_peer(2, b"1"))
    assert table.numbers() == [[1, 0, 2]]


def changes(table):
    return [entry.line.split("  ", 1)[1] for entry in table.roster.story.entries]


def test_the_story_has_couriers_that_are_left_out_or_started_again(table):
    assert not any("courier" in line for line in changes(table)), "they listen for the first time"
    table.table.take(RoundReached(1, {0: 1, 1: 1, 2: 1}))
    for host in (0, 2):
        table.table.handle_news(host, Gathered(1, {0: 3, 1: 2, 2: 3}))
    table.table.handle_news(1, Gathered(1, {0: 3, 1: 2, 2: 3}))
    table.table.handle_news(0, LeftOut(2, "no link"))
    table.table.handle_news(2, LeftOut(0, "no link"))
    table.table.handle_news(0, LeftOut(2, ""))
    table.table.handle_news(2, Listening("127.0.0.1", 2, "00"))
    why = "round 1: some hosts lack the contribution of its workers, or its center is behind"
    assert changes(table)[-4:] == [
        f"courier of host 1: left out ({why})",
        "courier of hosts 0, 2: do not exchange (no link)",
        "courier of hosts 0, 2: do not exchange -> exchange again",
        "courier of host 2: started again",
    ]


@pytest.mark.parametrize("first", [0, 2])
def test_who_waits_for_the_initial_values_of_the_first_host_is_said_once(table, monkeypatch, caplog, first):
    monkeypatch.setattr(courier_table, "timeout", {"link": -1.0, "exchange": 0.2}.get)
    shared = Shared(Layout((ParameterSpec("w", (2,), "float32"),)), "ASGD", "")
    monkeypatch.setattr(CourierKeeper, "handle_order", lambda *args: None)
    for host in (first, 1):
        table.table.take(CenterMade(host, shared))
        table.table.step()
        table.table.step()
    said = [record.getMessage() for record in caplog.records]
    if first:
        assert [text.partition(", where")[0] for text in said] == [
            "workers of host 2 wait for the initial values of host 0",
            "workers of hosts 1, 2 wait for the initial values of host 0",
        ]
    else:
        assert said == []


def test_a_host_that_has_never_had_a_link_to_another_one_is_given_up(table, monkeypatch):
    monkeypatch.setattr(courier_table, "timeout", {"unlinked": -1.0, "wait": 300.0}.get)
    table.table.handle_news(1, LeftOut(2, "port 5", never=True))
    table.table.handle_news(0, LeftOut(2, "port 6", never=True))
    table.table.handle_news(0, LeftOut(1, "stalled"))
    table.table.step()
    assert table.given_up == [(2, "has had no link to host 1 since both started: port 5")]
    table.table.handle_news(1, LeftOut(2, ""))
    table.table.step()
    assert len(table.given_up) == 1


# Whose contributions to a round count.


def begun(hosts, idle=()):
    table = RoundTable()
    assert table.begin(7, {host: 1 + host for host in hosts}, idle) == Gather(
        7, sorted(hosts), [1 + host for host in sorted(hosts)]
    )
    return table


def test_all_count_when_all_have_all():
    table = begun([2, 0, 1])
    everyone = Gathered(7, {0: 6, 1: 6, 2: 6})
    assert table.gathered(1, everyone) is None
    assert table.gathered(0, everyone) is None
    assert table.gathered(2, everyone) == Combine(7, [0, 1, 2], 6, 0, [])
    assert table.gathered(2, everyone) is None  # a courier that was started again says it again


def test_what_a_lost_host_sent_to_some_only_counts_nowhere():
    table = begun([0, 1, 2])
    table.gathered(0, Gathered(7, {0: 6, 1: 6, 2: 6}))
    table.gathered(1, Gathered(7, {0: 6, 1: 6}))
    assert table.mark_lost(2) == Combine(7, [0, 1], 6, 0, [])
    assert table.mark_lost(2) is None


def test_what_a_lost_host_sent_to_all_counts_everywhere():
    table = begun([0, 1, 2])
    assert table.mark_lost(2) is None
    table.gathered(0, Gathered(7, {0: 6, 1: 6, 2: 6}))
    assert table.gathered(1, Gathered(7, {0: 6, 1: 6, 2: 6})) == Combine(7, [0, 1, 2], 6, 0, [])


def test_a_host_behind_gets_the_center_of_one_that_is_not():
    table = begun([0, 1, 2], idle=[3, 4])
    bases = {0: 0, 1: 6, 2: 6}
    for host in (0, 1):
        table.gathered(host, Gathered(7, bases))
    assert table.mark_lost(4) is None
    assert table.gathered(2, Gathered(7, bases)) == Combine(7, [1, 2], 6, 1, [3])


def test_a_lost_host_that_was_ahead_of_all_others_holds_nobody_up():
    table = begun([0, 1, 2])
    bases = {0: 5, 1: 5, 2: 6}
    table.mark_lost(2)
    table.gathered(0, Gathered(7, bases))
    assert table.gathered(1, Gathered(7, bases)) == Combine(7, [0, 1], 5, 0, [])


def test_news_of_an_earlier_round_changes_nothing():
    table = begun([0, 1])
    assert table.gathered(0, Gathered(6, {0: 5, 1: 5})) is None
    table.gathered(1, Gathered(7, {0: 6, 1: 6}))
    assert table.gathered(0, Gathered(7, {0: 6, 1: 6})) is not None


def test_a_host_that_is_lost_after_it_had_all_gives_no_center():
    table = begun([0, 1, 2])
    bases = {0: 6, 1: 5, 2: 5}
    assert table.gathered(0, Gathered(7, bases)) is None
    assert table.mark_lost(0) is None
    assert table.gathered(1, Gathered(7, bases)) is None
    assert table.gathered(2, Gathered(7, bases)) == Combine(7, [1, 2], 5, 1, [])
    assert table.mark_lost(1) is None


def after_a_round_of(hosts):
    """Return a table whose round 7, which these hosts have made, is followed by one of host 0."""
    table = begun(hosts, idle=[0])
    for host in hosts:
        decision = table.gathered(host, Gathered(7, dict.fromkeys(hosts, 6)))
    assert decision == Combine(7, sorted(hosts), 6, min(hosts), [0])
    table.begin(8, {0: 1}, hosts)
    return table


def test_a_host_that_had_no_part_in_the_round_before_begins_from_its_center():
    assert after_a_round_of([1, 2]).gathered(0, Gathered(8, {0: 6})) == Combine(8, [], 7, 1, [1, 2])
    assert after_a_round_of([1, 2]).gathered(0, Gathered(8, {0: 7})) == Combine(8, [0], 7, 0, [1, 2])  # it has it


def test_a_lost_host_that_has_returned_gives_no_center_of_before():
    table = after_a_round_of([1, 2])
    table.mark_lost(1)
    table.begin(8, {0: 1}, [1, 2])
    assert table.gathered(0, Gathered(8, {0: 6})) == Combine(8, [], 7, 2, [1, 2])


def test_a_center_that_was_lost_with_its_host_holds_nobody_up():
    table = after_a_round_of([1])
    assert table.mark_lost(1) is None
    assert table.gathered(0, Gathered(8, {0: 6})) == Combine(8, [0], 6, 0, [])
    table = after_a_round_of([1])
    assert table.gathered(0, Gathered(8, {0: 6})) == Combine(8, [], 7, 1, [1])
    assert table.mark_lost(1) == Combine(8, [0], 6, 0, [])
    assert table.mark_lost(1) is None
