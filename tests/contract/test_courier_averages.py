"""Centers of several hosts that average themselves, and share moments: real centers and couriers, in turns of one loop.

The second array is the moment of the first: one stripe holds parts of both, one a part of the moment alone.
"""

import threading

import numpy as np
import pytest
import rounds_in_turns
from couriers_in_turns import listening_of
from rounds_in_turns import Group

from platoon_base.centers import stripes
from platoon_base.centers.host import STRIPE_BYTES
from platoon_base.centers.stripes import COURIER
from platoon_base.courier import messages as between
from platoon_base.rules import EASGD, AveragedEASGD

pytestmark = pytest.mark.base

RULE = AveragedEASGD(pull=0.5, scale=2.0, warmup=0).resolved(2)


def model(value):
    return [np.full(STRIPE_BYTES // 4 + 100, value, "float32"), np.full(STRIPE_BYTES // 4 + 100, value, "float32")]


@pytest.fixture(autouse=True)
def with_moments(monkeypatch):
    monkeypatch.setattr(rounds_in_turns, "model", model)


def filled(rule=RULE, workers=(1, 1), compression="none"):
    """Return a group of hosts that have a center each, with the same values."""
    group = Group([1.0] * len(workers), rule, list(workers), compression, moments=1)
    group.introduce()
    group.made()
    group.until_filled()
    return group


def train(group):
    """Let the worker of each host go somewhere else, and synchronize once."""
    for seed, host in enumerate(group.hosts):
        for array in host.params:
            array += np.random.default_rng(seed).random(array.shape).astype(array.dtype)
        assert host.center.sync(host.rule.at_count(1), host.params, True, 10) is None


def exchange(group):
    before = [host.exchanges for host in group.hosts]
    group.until(lambda: all(host.exchanges > count + 2 for host, count in zip(group.hosts, before)))


def values_of(host):
    """Return copies of the parameter and the moment of the center, and of the average of the parameter."""
    (x, moment), states = host.center.snapshot()
    return x, moment, states[0][0]


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_exchanges_bring_parameters_together_and_leave_moments_and_averages_alone(compression):
    with filled(compression=compression) as group:
        train(group)
        before = [values_of(host) for host in group.hosts]
        assert (before[0][1] != before[1][1]).any()
        exchange(group)
        mean = (before[0][0] + before[1][0]) / 2
        for host, (_, moment, average) in zip(group.hosts, before):
            now = values_of(host)
            np.testing.assert_allclose(now[0], mean, atol=1e-6 if compression == "none" else 1e-2)
            np.testing.assert_array_equal(now[1], moment)
            np.testing.assert_array_equal(now[2], average)


@pytest.mark.parametrize("rule", [RULE, EASGD(0.5, moments=True)], ids=repr)
def test_a_worker_moves_along_with_its_center_and_that_is_no_step_of_its_own(rule):
    with filled(rule) as group:
        for value, host in enumerate(group.hosts):
            host.center.fill(model(value), [])
            host.center.read(host.params, True, 10, begin=True)
        exchange(group)
        for value, host in enumerate(group.hosts):
            assert host.center.sync(rule.at_count(2), host.params, True, 10) is None
            x, moment = host.params
            np.testing.assert_allclose(x, 0.5, atol=1e-6)  # a step would be scaled, and lead away from the center
            np.testing.assert_array_equal(moment, value)
            np.testing.assert_allclose(host.center.values[0], 0.5, atol=1e-6)


@pytest.mark.parametrize("workers", [(1, 1), (3, 1, 2)], ids=repr)
def test_at_a_mean_all_hosts_have_the_same_center_and_the_same_average(workers):
    with filled(workers=workers) as group:
        for number in (1, 2):
            train(group)
            before = [values_of(host) for host in group.hosts]
            assert all((x != average).any() for x, _, average in before)
            group.begin(number, range(len(workers)), workers=list(workers))
            group.end(number)
            found = [values_of(host) for host in group.hosts]
            for part in (0, 2):
                mean = np.average([each[part] for each in before], axis=0, weights=workers)
                np.testing.assert_allclose(found[0][part], mean, atol=1e-6)
                assert all(each[part].tobytes() == found[0][part].tobytes() for each in found)
            for (_, moment, _), (_, now, _) in zip(before, found):
                np.testing.assert_array_equal(now, moment)


def test_a_host_that_is_lost_within_an_exchange_holds_up_no_mean():
    with filled(workers=(1, 1, 1)) as group:
        exchange(group)
        for _ in range(30):  # It begins an exchange, and the others do not answer.
            group.hosts[0].courier.step([])
        group.lose(2)
        group.begin(1, [0, 1])
        group.end(1, 0, 1)


def test_a_host_without_workers_gets_the_center_and_its_average():
    with filled(workers=(1, 1, 1)) as group:
        train(group)
        starts = [values_of(host) for host in group.hosts]
        group.begin(4, [0, 2], idle=[1])
        group.end(4, 0, 2)
        first, second = group.hosts[:2]
        group.until(lambda: second.center.across_hosts.made == 4)
        for part in (0, 2):
            assert values_of(first)[part].tobytes() == values_of(second)[part].tobytes()
            mean = (starts[0][part] + starts[2][part]) / 2  # its own center does not count
            np.testing.assert_allclose(values_of(first)[part], mean, atol=1e-6)
        assert (values_of(second)[0] != values_of(second)[2]).any()


def test_what_a_held_stripe_has_left_of_a_move_is_added_later(monkeypatch):
    monkeypatch.setattr(stripes, "timeout", {"stripe": 0.05}.get)
    with filled() as group:
        host, tried = group.hosts[0], []
        courier, by = host.centers.watch(host.layout, COURIER), np.ones_like(host.params[0])
        host.center.locks.visit(lambda stripe: tried or tried.append(courier.move([by], 0)))
        assert tried == [False]
        assert 0 < by.sum() < by.size
        assert courier.move([by], 0)
        courier.close()
        np.testing.assert_array_equal(values_of(host)[0], 2)


def test_an_average_follows_a_center_that_a_worker_changes():
    with filled() as group:
        train(group)
        center = group.hosts[0].center
        x, moment, average = values_of(group.hosts[0])
        new = x.copy()
        new[3] = 7
        center.change([x, moment], [new, moment + 1])
        found = values_of(group.hosts[0])
        np.testing.assert_array_equal(found[0], new)
        np.testing.assert_array_equal(found[1], moment + 1)
        average[3] = 7
        np.testing.assert_array_equal(found[2], average)


def test_the_average_of_a_host_without_live_workers_moves_with_its_center():
    """A checkpoint of that host would have the values of long ago."""
    with filled() as group:
        for host in group.hosts:
            host.courier.handle_order(between.Peers(listening_of(group.hosts), workers={0: 0, 1: 1}))
        other = group.hosts[1]
        for count in range(1, 4):
            other.params[0] += np.float32(1)
            assert other.center.sync(RULE.at_count(count), other.params, True, 10) is None
            exchange(group)
        center, moment, average = values_of(group.hosts[0])
        np.testing.assert_allclose(center, values_of(other)[0], atol=1e-5)
        np.testing.assert_allclose(average, center, atol=1e-5)
        np.testing.assert_array_equal(moment, 1)


def test_who_overwrites_the_center_overwrites_the_averages_of_all_hosts():
    with filled() as group:
        train(group)
        writing = threading.Thread(target=group.hosts[0].center.write, args=(model(7), True, 20))
        writing.start()
        group.until(lambda: not writing.is_alive())
        writing.join()
        for host in group.hosts:
            for part in values_of(host):
                np.testing.assert_array_equal(part, 7)
