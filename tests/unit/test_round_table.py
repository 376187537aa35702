"""Whose contributions count in a round of several hosts."""

import pytest

from platoon_base.courier.messages import Combine, Gather, Gathered
from platoon_base.multihost.courier_table import RoundTable

pytestmark = pytest.mark.base


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
