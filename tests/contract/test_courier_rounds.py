"""Rounds of workers on several hosts, by real couriers and centers: who is behind, idle, lost or cut off meanwhile.

The hosts are turns of one loop; jobs with real launchers are in jobs/test_rounds_of_hosts.py.
"""

import threading
import time
import tracemalloc

import numpy as np
import pytest
from rounds_in_turns import KILLS, RULE, Group, model, require_alike, require_same_center, state_of

from platoon_base.courier import courier
from platoon_base.courier import messages as between
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.rules import EASGD, CenterMomentum

pytestmark = pytest.mark.base


class OneHost:
    """The same rounds on one host, as the oracle."""

    def __init__(self, start):
        self.x, self.states = np.full(1, start), (np.zeros(1),)

    def round(self, *progress):
        if progress:
            RULE.step(np.full(1, np.mean(progress)), self.x, self.states, 1.0)
        return float(self.x[0])


def test_hosts_make_the_same_steps():
    with Group([1.0, 5.0, 9.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        oracle = OneHost(1.0)
        for number in (1, 2, 3):
            for host, progress in zip(group.hosts, (1.0, 2.0, 6.0)):
                host.contribute(progress * number)
            group.begin(number, [0, 1, 2])
            group.end(number)
            require_alike(*group.hosts)
            assert group.hosts[1].params[1][0] == pytest.approx(oracle.round(number, 2.0 * number, 6.0 * number))


def test_a_worker_that_comes_between_the_exchange_and_the_step_is_too_late_for_both():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        for host in group.hosts:
            host.contribute(1.0)
        group.begin(1, [0, 1])
        rounds = [host.center.across_hosts for host in group.hosts]
        group.until(lambda: group.report() or all(each.are_gathered(1) for each in rounds))
        group.until(lambda: all(each.are_gathered(1) for each in rounds))
        late = group.hosts[0].centers.attach(group.hosts[0].layout, RULE, 1)
        params = model(0.0)
        late.read(params, True, 10, begin=True)
        for array in params:
            array += 100
        assert late.contribute(params, 1.0, 10) is None
        late.close()
        assert rounds[0].are_gathered(1)
        group.end(1)
        require_alike(*group.hosts)


def test_a_host_that_is_behind_gets_the_center_first_and_its_progress_does_not_count():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        first, second = group.hosts
        oracle = OneHost(1.0)
        for number in (1, 2):  # while nobody works on the second host
            first.contribute(1.0)
            group.begin(number, [0])
            group.end(number, 0)
            oracle.round(1.0)
        first.contribute(3.0)
        second.contribute(100.0)  # from values of long ago
        group.begin(3, [0, 1])
        group.end(3)
        require_alike(first, second)
        assert second.params[1][0] == pytest.approx(oracle.round(3.0))
        first.contribute(1.0)
        second.contribute(2.0)
        group.begin(4, [0, 1])
        group.end(4)
        require_alike(first, second)
        assert first.params[1][0] == pytest.approx(oracle.round(1.0, 2.0))


def test_a_host_without_workers_gets_the_center_after_the_step():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        first, second = group.hosts
        second.contribute(2.0)
        group.begin(1, [1], idle=[0])
        group.end(1, 1)
        group.until(lambda: first.center.across_hosts.made == 1)
        assert state_of(first) == state_of(second)


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("steps", range(8))
def test_a_host_without_workers_gets_the_center_though_a_courier_is_killed(killed, steps):
    with Group([1.0, 1.0]) as group:
        group.get_ready()
        first, second = group.hosts
        second.contribute(2.0)
        group.begin(1, [1], idle=[0])
        group.end(1, 1)
        group.kill(killed, steps)
        group.until(lambda: first.center.across_hosts.made == 1)
        assert state_of(first) == state_of(second)


def test_a_host_without_a_center_keeps_nothing_of_those_of_others():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made(0)
        group.until(lambda: group.hosts[0].has_center, 0)
        first = group.hosts[0]
        first.center.read(first.params, True, 10, begin=True)
        tracemalloc.start()
        try:
            for number in range(1, 8):
                first.contribute(1.0)
                group.begin(number, [0], idle=[1])
                group.end(number, 0)
                for _ in range(20):
                    for host in group.hosts:
                        host.courier.step([])
            assert tracemalloc.get_traced_memory()[0] < 8 * first.layout.nbytes  # 14 are given otherwise
        finally:
            tracemalloc.stop()


def test_who_overwrites_the_center_does_so_on_all_hosts():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        first, second = group.hosts
        for number, value in ((1, 5.0), (2, 7.0)):
            writing = threading.Thread(target=second.center.write, args=(model(value), True, 20))
            writing.start()
            group.until(lambda thread=writing: not thread.is_alive())
            assert (first.center.values[1] == value).all()
            require_same_center(first, second)
            for host, progress in zip(group.hosts, (1.0, 3.0)):
                host.center.read(host.params, True, 10, begin=True)
                host.contribute(progress)
            group.begin(number, [0, 1])
            group.end(number)
            require_alike(first, second)
            assert first.params[1][0] > value


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_host_lost_in_the_midst_counts_on_all_others_or_on_none(has_sent):
    with Group([1.0, 1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        for host, progress in zip(group.hosts, (1.0, 2.0, 6.0)):
            host.contribute(progress)
        if has_sent:
            group.begin(1, [0, 1, 2])
            has_all = [host.news for host in group.hosts[:2]]
            group.until(lambda: all(any(isinstance(n, between.Gathered) for n in news) for news in has_all))
            group.lose(2)
        else:
            group.lose(2)
            group.begin(1, [0, 1])
        group.end(1, 0, 1)
        require_alike(*group.hosts[:2])
        expected = OneHost(1.0).round(*(1.0, 2.0, 6.0)[: 3 if has_sent else 2])
        assert group.hosts[0].params[1][0] == pytest.approx(expected)


@pytest.fixture
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.parametrize(("hosts", "killed", "steps"), KILLS)
def test_a_courier_that_is_killed_at_any_step_loses_nothing(hosts, killed, steps):
    progress = (1.0, 2.0, 6.0)[:hosts]
    with Group([1.0] * hosts) as group:
        group.introduce()
        group.made()
        group.until_filled()
        group.keep_filled()
        oracle = OneHost(1.0)
        for number in (1, 2):
            for host, each in zip(group.hosts, progress):
                host.contribute(each)
            group.begin(number, range(hosts))
            if number == 1:
                group.kill(killed, steps)
            group.end(number)
            require_alike(*group.hosts)
            assert group.hosts[0].params[1][0] == pytest.approx(oracle.round(*progress))


def scatter(group, seed):
    """Give each center values of its own; returns the first parameters."""
    random = np.random.default_rng(seed)
    starts = [[random.normal(size=a.shape).astype(a.dtype) for a in model(0)] for _ in group.hosts]
    for host, start in zip(group.hosts, starts):
        host.center.fill(start, [])
    return [start[0] for start in starts]


@pytest.mark.parametrize("rule", [EASGD(0.5), CenterMomentum(0.5, 0.9, 0.0)], ids=repr)
@pytest.mark.parametrize("workers", [[1, 1], [3, 1], [1, 2, 1]], ids=repr)
def test_workers_that_stand_still_find_their_mean_on_all_hosts(rule, workers):
    with Group([1.0] * len(workers), rule) as group:
        group.introduce()
        group.made()
        group.until_filled()
        for number in (1, 2, 5):
            starts = scatter(group, number)
            group.begin(number, range(len(workers)), workers=workers)
            group.end(number)
            require_same_center(*group.hosts)
            mean = np.average(starts, axis=0, weights=workers)
            np.testing.assert_allclose(group.hosts[0].center.values[0], mean, atol=1e-6)


@pytest.mark.parametrize("workers", [[1, 1], [1, 2, 3]], ids=repr)
def test_exchanges_go_on_after_a_mean_and_do_not_change_a_bit_of_it(workers):
    with Group([1.0] * len(workers), EASGD(0.5), workers) as group:
        group.introduce()
        group.made()
        group.until_filled()
        starts = scatter(group, 3)
        group.begin(1, range(len(workers)), workers=workers)
        group.end(1)
        before, state = [host.courier.exchanges for host in group.hosts], state_of(group.hosts[0])
        group.until(lambda: all(host.courier.exchanges > count + 3 for host, count in zip(group.hosts, before)))
        for host in group.hosts:
            assert state_of(host) == state
        mean = np.average(starts, axis=0, weights=workers)
        np.testing.assert_allclose(group.hosts[0].center.values[0], mean, atol=1e-6)


def test_a_host_without_workers_gets_the_mean_and_does_not_count():
    with Group([1.0, 1.0, 1.0], EASGD(0.5)) as group:
        group.introduce()
        group.made()
        group.until_filled()
        starts = scatter(group, 3)
        group.begin(4, [0, 2], idle=[1])
        group.end(4, 0, 2)
        group.until(lambda: group.hosts[1].center.across_hosts.made == 4)
        np.testing.assert_allclose(group.hosts[0].center.values[0], (starts[0] + starts[2]) / 2, atol=1e-6)


def test_a_center_with_nan_does_not_count(caplog):
    with Group([1.0, 1.0], EASGD(0.5)) as group:
        group.introduce()
        group.made()
        group.until_filled()
        starts = scatter(group, 3)
        group.hosts[1].center.fill(model(np.nan), [])
        group.begin(1, [0, 1])
        group.end(1)
        require_same_center(*group.hosts)
        np.testing.assert_array_equal(group.hosts[1].center.values[0], starts[0])
    assert "NaN" in caplog.text


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.parametrize(("hosts", "killed", "steps"), KILLS)
def test_a_mean_survives_couriers_that_are_killed(hosts, killed, steps):
    with Group([1.0] * hosts, EASGD(0.5)) as group:
        group.introduce()
        group.made()
        group.until_filled()
        group.keep_filled()
        for number in (1, 2):
            starts = scatter(group, number)
            group.begin(number, range(hosts))
            if number == 1:
                group.kill(killed, steps)
            group.end(number)
            require_same_center(*group.hosts)
            np.testing.assert_allclose(group.hosts[0].center.values[0], np.mean(starts, axis=0), atol=1e-6)


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.parametrize("rule", [RULE, EASGD(0.5)], ids=repr)
@pytest.mark.parametrize("seed", range(6))
def test_couriers_that_are_killed_again_and_again_in_any_order_of_turns_lose_nothing(rule, seed):
    random, progress, oracle = np.random.default_rng(seed), (1.0, 2.0, 6.0), OneHost(1.0)
    with Group([1.0, 1.0, 1.0], rule) as group:
        group.introduce()
        group.made()
        group.until_filled()
        group.keep_filled()
        for number in (1, 2, 3):
            starts = scatter(group, number) if rule is not RULE else None
            if starts is None:
                for host, each in zip(group.hosts, progress):
                    host.contribute(each)
            group.begin(number, range(3))
            for killed in random.integers(3, size=random.integers(3)):
                for host in random.integers(3, size=random.integers(40)):
                    group.hosts[host].courier.step([])
                    group.report()
                group.hosts[killed].restart()
                group.introduce()
            group.end(number)
            require_same_center(*group.hosts)
            if starts is None:
                assert group.hosts[0].params[1][0] == pytest.approx(oracle.round(*progress))
            else:
                np.testing.assert_allclose(group.hosts[0].center.values[0], np.mean(starts, axis=0), atol=1e-6)


def test_a_round_that_another_host_never_ends_has_a_deadline():
    with Group([1.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled()
        group.hosts[0].contribute(1.0)
        group.begin(1, [0, 1])
        for _ in range(3):
            group.hosts[0].courier.step([])
        began = time.monotonic()
        with pytest.raises(CollectiveTimeoutError, match="other hosts"):
            group.hosts[0].take_over(1, timeout_s=0.2)
        assert time.monotonic() - began < 5


def want_until_made(group, hosts, number):
    """Let a worker of the first of these hosts wait for the center of a round."""
    rounds = [group.hosts[host].center.across_hosts for host in hosts]
    rounds[0].want(number)
    group.until(lambda: rounds[0].made >= number, *hosts)
    require_alike(*(group.hosts[host] for host in hosts))


def begin_first_round(group, hosts, idle):
    for host in hosts:
        group.hosts[host].contribute(float(host + 1))
    group.begin(1, hosts, idle=idle)


def end_first_round(group, hosts):
    rounds = [group.hosts[host].center.across_hosts for host in hosts]

    def gathered():
        group.report()
        return all(each.are_gathered(1) for each in rounds)

    group.until(gathered, *hosts)


def test_a_center_that_a_worker_waits_for_comes_from_another_host_if_the_source_is_lost():
    with Group([1.0] * 3) as group:
        group.get_ready()
        begin_first_round(group, [1, 2], [0])
        end_first_round(group, [1, 2])
        for host in (1, 2):
            group.hosts[host].take_over(1)
        group.lose(1)
        want_until_made(group, [0, 2], 1)


def test_a_center_that_a_worker_waits_for_comes_to_a_host_that_was_filled_during_the_round():
    with Group([1.0] * 3) as group:
        group.introduce()
        group.made(0, 2)
        group.until(lambda: group.hosts[0].has_center and group.hosts[2].has_center)
        for host in (0, 2):
            group.hosts[host].center.read(group.hosts[host].params, True, 10, begin=True)
        begin_first_round(group, [0, 2], [])
        group.made(1)
        group.until(lambda: group.hosts[1].has_center, 0, 1)
        end_first_round(group, [0, 2])
        for host in (0, 2):
            group.hosts[host].take_over(1)
        want_until_made(group, [1, 0, 2], 1)


def test_a_center_that_a_worker_waits_for_comes_where_nobody_lives_to_make_the_step():
    with Group([1.0] * 2) as group:
        group.get_ready()
        begin_first_round(group, [0, 1], [])
        end_first_round(group, [0, 1])
        group.hosts[0].take_over(1)
        want_until_made(group, [1, 0], 1)
