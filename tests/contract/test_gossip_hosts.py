"""Gossip over hosts: real slots, roads and couriers, as turns of one loop; links break, couriers and hosts end."""

import contextlib
import threading

import numpy as np
import pytest

from platoon_base.centers.gossip_hosts import Road
from platoon_base.centers.gossip_memory import Slot
from platoon_base.centers.host import STRIPE_BYTES
from platoon_base.centers.overwrites import Overwrites
from platoon_base.courier import messages as between
from tests.helpers.gossip_in_turns import ALWAYS, NEVER, Hosts

pytestmark = pytest.mark.base

LARGE = STRIPE_BYTES // 4 + 17  # two stripes of float32


def model(value=0.0):
    return [np.full((3, 5), value), np.full(LARGE, value, "float32")]


def require_whole(group):
    assert group.weights == [1.0] * len(group.weights)


@pytest.fixture
def hosts():
    made = []

    def make(workers, start=None, **options):
        made.append(Hosts(model() if start is None else start, workers, **options))
        return made[-1]

    yield make
    for group in made:
        group.__exit__()


def test_hosts_share_the_weight_and_a_message_moves_half_of_a_workers(hosts):
    group = hosts([1, 1])
    require_whole(group)
    group.step(0, 8.0, ALWAYS)
    group.until_delivered()
    require_whole(group)
    first, second = (group.watch(host).slots.every()[0] for host in group.hosts)
    assert (second.weights == 3 * first.weights).all()
    group.step(1)
    np.testing.assert_allclose(group.hosts[1].params[1][0], 8 / 3)
    np.testing.assert_allclose(group.mean()[0], 4)


def test_all_hosts_begin_with_the_values_of_the_first(hosts):
    group = hosts([1, 2], filled=False)
    for rank in (1, 2):
        group.hosts[1].workers[rank].read(group.hosts[1].params[rank], True, 10, begin=True)
        np.testing.assert_array_equal(group.hosts[1].params[rank][0], 0)
    require_whole(group)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.product) for seed in (1, 2, 3))])
def test_whatever_breaks_the_weights_add_up_and_the_mean_stays(hosts, seed):
    """Messages, broken links, couriers that are started again, workers that leave and come, in any order."""
    rng = np.random.default_rng(seed)
    group = hosts([2, 2, 1])
    for rank in range(5):
        group.step(rank, float(rank))
    want, new = [array.copy() for array in group.mean()], 5
    for _ in range(120):
        host = group.hosts[rng.integers(3)]
        action = rng.choice(["step", "step", "step", "turn", "turn", "break", "restart", "leave", "join"])
        if action == "step":
            group.step(int(rng.choice(list(host.workers))), 0.0, ALWAYS)
        elif action == "turn":
            group.turn()
        elif action == "break":
            for conversation in list(host.courier._conversations.values()):
                with contextlib.suppress(OSError):  # the other side was faster
                    conversation.stream._sock.shutdown(2)
        elif action == "restart":
            group.restart(host.world.host)
        elif action == "join":
            host.join(new)
            new += 1
        elif len(host.workers) > 1:
            host.leave(int(rng.choice(list(host.workers))))
        require_whole(group)
        for got, expected in zip(group.mean(), want):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 if got.size == LARGE else 1e-12)
    group.until_delivered()
    require_whole(group)


def test_the_mean_of_all_hosts_has_the_same_bits_everywhere_and_counts_what_is_under_way(hosts):
    group = hosts([2, 1, 1], [np.linspace(0.1, 0.7, 7), np.ones(3, "float16")])
    for rank in range(4):
        group.step(rank, rank / 7, ALWAYS)
    want = group.mean()
    group.make_round()
    found = [group.consensus(rank) for rank in range(4)]
    for other in found[1:]:
        for one, two in zip(found[0], other):
            np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(found[0][0], want[0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], want[1], rtol=2e-3)
    assert not any(True for _ in group.under_way())
    require_whole(group)
    for host in group.hosts:  # the controller, for a checkpoint
        np.testing.assert_array_equal(group.watch(host).snapshot()[0][0], found[0][0])


def test_a_host_contributes_when_nothing_is_under_way_to_it(hosts):
    """Host 1 begins the round before the other one has sent its message."""
    group = hosts([1, 1], [np.zeros(4)])
    group.step(0, 8.0, ALWAYS)
    numbers = group.begin_round()
    for _ in range(10):
        group.hosts[1].courier.step([])
    group.combine(numbers)
    group.until(lambda: all(group.memory(host).made == 1 for host in group.hosts))
    for rank in (0, 1):
        np.testing.assert_array_equal(group.consensus(rank)[0], 4)


def test_the_mean_of_all_hosts_is_read_until_a_worker_trains_on(hosts):
    group = hosts([1, 1])
    group.step(0, 2.0)
    group.make_round()
    np.testing.assert_array_equal(group.consensus(0)[0], 1)
    np.testing.assert_array_equal(group.consensus(1)[0], 1)
    group.step(0, 1.0)
    np.testing.assert_array_equal(group.consensus(0)[0], 3)  # of its host
    np.testing.assert_array_equal(group.consensus(1)[0], 1)


def test_a_message_of_workers_that_have_the_mean_waits_for_a_host_that_has_it_not(hosts):
    """Host 1 is told later that its contribution counts: what the other one sends meanwhile is none of the mean."""
    group = hosts([1, 1], [np.zeros(4)])
    group.step(0, 4.0)
    numbers = group.begin_round()
    news = [host.news for host in group.hosts]
    group.until(lambda: all(any(isinstance(each, between.Gathered) for each in of) for of in news))
    first, second = group.hosts
    combine = between.Combine(group.rounds, numbers, 0, 0, [])
    first.courier.handle_order(combine)
    group.until(lambda: group.memory(first).made == 1)
    group.step(0, 100.0, ALWAYS)
    ((road, _),) = group.under_way()
    received = lambda: second.courier._conversations[0].has_message  # noqa: E731
    group.until(received)
    group.turn()
    assert received()
    group.restart(1)  # its next one makes the same contribution
    second.courier.handle_order(between.Gather(group.rounds, numbers, [1, 1]))
    second.courier.handle_order(combine)
    group.until(lambda: group.memory(second).made == 1)
    np.testing.assert_array_equal(group.consensus(1)[0], 2)
    group.until(lambda: not road.full)
    require_whole(group)


@pytest.mark.parametrize("where", ["mix", "add"])
def test_a_courier_that_is_killed_while_it_merges_loses_a_stripe_at_most_and_doubles_none(hosts, monkeypatch, where):
    group = hosts([1, 1], [np.zeros(LARGE, "float32")])
    group.step(0, 8.0, ALWAYS)
    genuine, calls = getattr(Slot, where), []

    def dies(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        genuine(*arguments, **options)

    monkeypatch.setattr(Slot, where, dies)
    with pytest.raises(KeyboardInterrupt):
        group.until(lambda: False)
    monkeypatch.setattr(Slot, where, genuine)
    group.restart(1)
    group.until_delivered()
    kept, lost = sorted(group.weights, reverse=True)
    assert (kept, lost) == (1.0, 0.75)


def test_a_link_that_carries_nothing_delays_no_worker_and_takes_no_weight(hosts, caplog):
    group = hosts([2, 1])
    for _ in range(70):  # while the couriers do nothing
        group.step(0, 1.0, ALWAYS)
    assert len(list(group.under_way())) == 1
    require_whole(group)
    roads = group.hosts[0].workers[0]._roads
    assert roads.sent == 1
    assert roads.unsent > 20
    assert [record.getMessage().count("were not sent") for record in caplog.records] == [1]
    assert min(slot.weight for slot in group.watch(group.hosts[0]).slots.every()) > 0


def test_a_message_for_a_host_that_is_lost_goes_to_a_worker_of_its_own_host(hosts):
    group = hosts([2, 1])
    road = group.memory(group.hosts[0]).roads[1]
    while not road.full:
        group.step(0, 1.0, ALWAYS)
    before = sum(slot.weight for slot in group.watch(group.hosts[0]).slots.every())
    group.hosts[0].courier.handle_order(between.Lost(1))
    group.hosts[0].courier.step([])
    assert not road.full
    assert road.workers == 0
    assert sum(slot.weight for slot in group.watch(group.hosts[0]).slots.every()) > before
    for _ in range(20):
        group.step(0, 1.0, ALWAYS)
        group.hosts[0].courier.step([])
        assert not road.full


def test_a_lost_host_that_returns_takes_part_with_a_weight_as_at_the_start(hosts):
    """Its memory is another one, whose messages begin with number 1 again."""
    group = hosts([1, 1])
    for _ in range(3):
        group.step(1, 1.0, ALWAYS)
        group.until_delivered()
    for number in (0, 1):
        group.hosts[number].courier.handle_order(between.Lost(1 - number))
    returned = group.hosts[1]
    group.watching.pop(1).close()
    returned.close()
    again = type(returned)(returned.world, model(7.0), filled=False)
    group.hosts[1] = again
    group.introduce()
    again.courier.handle_order(between.Made())
    group.until(lambda: all(group.roads_are_known(host) for host in group.hosts))
    again.workers[1].read(again.params[1], True, 10, begin=True)
    np.testing.assert_allclose(again.params[1][0], group.watch(group.hosts[0]).snapshot()[0][0])
    before = group.weights
    group.step(1, 1.0, ALWAYS)
    group.until_delivered()
    assert group.weights == before


def test_weight_that_returning_hosts_bring_never_overflows(hosts):
    group = hosts([1, 1], [np.zeros(4)])
    (slot,) = group.watch(group.hosts[1]).slots.every()
    slot.weights[...] = (1 << 63) - 5
    group.step(0, 8.0, ALWAYS)
    group.until_delivered()
    assert int(slot.weights[0]) == 1 << 63
    assert int(slot.received[0]) == 5
    group.step(1)
    assert np.isfinite(group.hosts[1].params[1][0]).all()


def test_a_message_to_a_host_without_workers_is_returned(hosts):
    group = hosts([1, 1])
    road = group.memory(group.hosts[0]).roads[1]
    group.step(0, 6.0, ALWAYS)
    assert road.full
    group.hosts[1].die(1)
    group.until(lambda: not road.full)
    (own,) = group.watch(group.hosts[0]).slots.every()
    assert own.weight / len(own.weights) == (1 << 59)
    group.step(0)
    np.testing.assert_array_equal(group.hosts[0].params[0][0], 6)


def test_a_message_is_merged_by_another_worker_where_the_drawn_one_is_stopped(hosts):
    group = hosts([1, 2])
    first, second = group.hosts[1].workers
    for rank in (first, second):
        slot = group.hosts[1].workers[rank].slots.own
        assert slot.locks.lock(slot.stripes[0])  # as one that is stopped there
        for _ in range(6):  # some of them are for it
            group.step(0, 1.0, ALWAYS)
            group.until_delivered()
        slot.locks.release_all()
    require_whole(group)


def test_what_a_worker_leaves_while_the_courier_looks_at_the_road_is_not_lost(hosts, monkeypatch):
    group = hosts([1, 1])
    group.step(0, 8.0, ALWAYS)
    group.until_delivered()
    is_full = Road.full.fget
    looked = []

    def full(road):
        if not looked:
            looked.append(road)
            group.step(0, 8.0, ALWAYS)
        return is_full(road)

    monkeypatch.setattr(Road, "full", property(full))
    group.hosts[0].courier.step([])
    monkeypatch.undo()
    assert looked
    group.until_delivered()
    require_whole(group)


def test_a_host_whose_workers_took_no_part_in_a_mean_trains_on_as_it_was(hosts):
    group = hosts([1, 1])
    first, second = group.hosts
    group.step(1, 50.0)
    first.courier.handle_order(between.Gather(1, [0], [1]))
    first.courier.handle_order(between.Combine(1, [0], 0, 0, [1]))
    group.until(lambda: group.memory(second).made == 1)
    before = second.params[1][0].copy()
    group.step(1, 1.0)
    np.testing.assert_array_equal(second.params[1][0], before + 1)


def test_what_comes_while_a_worker_overwrites_all_only_adds_weight(hosts, monkeypatch):
    group = hosts([2, 1], [np.zeros(4)])
    road = group.memory(group.hosts[1]).roads[0]
    while not road.full:
        group.step(2, 50.0, ALWAYS)
    first = group.hosts[0]
    inside, stepped = threading.Event(), threading.Event()
    note = Overwrites.note

    def slow(overwrites):
        inside.set()
        assert stepped.wait(20)
        return note(overwrites)

    monkeypatch.setattr(Overwrites, "note", slow)
    writing = threading.Thread(target=first.workers[0].write, args=([np.full(4, 7.0)], True, 20))
    writing.start()
    assert inside.wait(20)
    for _ in range(10):  # the message comes now
        group.turn()
    stepped.set()
    group.until(lambda: not writing.is_alive())
    writing.join()
    group.until_delivered()
    require_whole(group)
    for host in group.hosts:
        for slot in group.watch(host).slots.every():
            np.testing.assert_array_equal(slot.values[0], 7)


def test_an_overwrite_reaches_all_workers_and_what_was_sent_before_it_only_adds_weight(hosts):
    group = hosts([2, 1, 1], [np.zeros(4)])
    for rank in range(4):
        group.step(rank, float(rank), ALWAYS)
    writer = group.hosts[1].workers[2]
    writing = threading.Thread(target=writer.write, args=([np.full(4, 7.0)], True, 20))
    writing.start()
    group.until(lambda: not writing.is_alive())
    writing.join()
    for host in group.hosts:
        for slot in group.watch(host).slots.every():
            np.testing.assert_array_equal(slot.values[0], 7)
    group.until_delivered()
    require_whole(group)
    for rank in range(4):
        if rank == 2:
            group.hosts[1].params[2][0][:] = 7
        group.step(rank)
        np.testing.assert_allclose(group.where(rank).params[rank][0], 7, rtol=1e-12)
    group.make_round()
    np.testing.assert_allclose(group.consensus(3)[0], 7, rtol=1e-12)


def test_elements_that_are_not_finite_stay_out_of_other_hosts(hosts):
    group = hosts([1, 1], [np.zeros(6)])
    group.hosts[0].params[0][0][:] = [1, np.nan, 1, np.inf, 1, 1]
    assert group.hosts[0].workers[0].sync(ALWAYS, group.hosts[0].params[0], True, 10) is not None
    group.until_delivered()
    group.step(1, 0.0, NEVER)
    assert np.isfinite(group.hosts[1].params[1][0]).all()


def test_the_last_worker_of_a_host_sends_its_half_over_any_road_that_is_free(hosts):
    group = hosts([1, 1, 1])
    first = group.hosts[0]
    group.until(lambda: all(road.workers for road in group.memory(first).roads.values()))
    roads = group.memory(first).roads
    while not roads[1].full:
        group.until_delivered()
        group.step(0, 1.0, ALWAYS)
    assert not roads[2].full
    first.leave(0)
    assert roads[2].full
    group.until_delivered()
    require_whole(group)


def test_the_last_worker_of_a_host_leaves_half_of_its_weight_there_and_sends_half(hosts):
    group = hosts([1, 1], [np.zeros(4)])
    group.step(1, 6.0)
    group.hosts[1].leave(1)
    group.until_delivered()
    require_whole(group)
    group.step(0)
    np.testing.assert_allclose(group.hosts[0].params[0][0], 2)
    group.hosts[1].join(2)
    np.testing.assert_array_equal(group.hosts[1].params[2][0], 6)
    require_whole(group)
