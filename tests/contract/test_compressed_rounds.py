"""Compressed rounds on several hosts, by real couriers and centers: equal bits, and residuals on every path.

The oracle is one host that adds up the same progress in float64. What the center lacks is on the hosts, as residuals.
"""

import threading

import numpy as np
import pytest
from rounds_in_turns import KILLS, Group, model, require_same_center

from platoon_base.compression.codecs import Blocks, codec_of
from platoon_base.compression.packing import Packing, Residuals
from platoon_base.courier import courier
from platoon_base.courier import messages as between
from platoon_base.courier.carriage import CompressedCarriage
from platoon_base.rules import EASGD, DiLoCo

pytestmark = pytest.mark.base

PLAIN = DiLoCo(1.0, 0.0)  # the center moves by the mean of what the workers have added
CODECS = ["float16", "bfloat16", "int8", "int4", "int2", "topk(0.01)"]


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


def residuals_of(host):
    return [np.array(each, "f8") for each in Residuals(host.layout, host.memory).latest]


class Oracle:
    """What the center of hosts without compression would be."""

    def __init__(self, group):
        self.group = group
        self.center = [np.array(each, "f8") for each in group.hosts[0].center.values]
        self.random = np.random.default_rng(7)

    def contribute(self, *hosts, counted=True):
        """Let the worker of each host add numbers of its own."""
        for number in hosts:
            host = self.group.hosts[number]
            progress = [self.random.standard_normal(a.shape).astype(a.dtype) for a in host.params]
            for array, start, added in zip(host.params, host.center.values, progress):
                np.copyto(array, start + added)
            for total, array, start in zip(self.center, host.params, host.center.values):
                if counted:
                    total += (array - start).astype("f8") / len(hosts)
            assert host.center.contribute(host.params, 1.0, 10) is None

    def require_residuals_have_the_rest(self, *hosts):
        require_same_center(*self.group.hosts)
        each = [residuals_of(self.group.hosts[number]) for number in hosts]
        for i, expected in enumerate(self.center):
            rest = np.mean([one[i] for one in each], axis=0)
            np.testing.assert_allclose(self.group.hosts[0].center.values[i] + rest, expected, atol=1e-4)


def ready(group):
    group.get_ready()
    return Oracle(group)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("hosts", [2, 3])
def test_all_hosts_hold_equal_bits_and_no_progress_is_lost(codec, hosts):
    with Group([1.0] * hosts, PLAIN, compression=codec) as group:
        oracle = ready(group)
        for number in range(1, 7):
            oracle.contribute(*range(hosts))
            group.begin(number, range(hosts))
            group.end(number)
            for host in group.hosts[1:]:
                for array, first in zip(host.params, group.hosts[0].params):
                    assert array.tobytes() == first.tobytes()
            oracle.require_residuals_have_the_rest(*range(hosts))


@pytest.mark.parametrize(("codec", "least"), [("float16", 1.9), ("int8", 3.8), ("int4", 7.3), ("topk(0.01)", 100)])
def test_fewer_bytes_travel(codec, least):
    with Group([1.0], PLAIN) as group:
        layout = group.hosts[0].layout
        assert layout.nbytes / Packing(layout, codec_of(codec)).nbytes > least


@pytest.mark.parametrize(("hosts", "killed", "steps"), KILLS)
def test_a_courier_that_is_killed_at_any_step_changes_no_bit(hosts, killed, steps):
    with Group([1.0] * hosts, PLAIN, compression="int4") as group:
        oracle = ready(group)
        for number in (1, 2, 3):
            oracle.contribute(*range(hosts))
            group.begin(number, range(hosts))
            if number == 2:  # there are residuals by then
                group.kill(killed, steps)
            group.end(number)
            oracle.require_residuals_have_the_rest(*range(hosts))


@pytest.mark.parametrize("seed", range(6))
def test_couriers_that_are_killed_again_and_again_change_no_bit(seed):
    random = np.random.default_rng(seed)
    with Group([1.0, 1.0, 1.0], PLAIN, compression="topk(0.1)") as group:
        oracle = ready(group)
        for number in (1, 2, 3):
            oracle.contribute(0, 1, 2)
            group.begin(number, range(3))
            for killed in random.integers(3, size=random.integers(3)):
                for host in random.integers(3, size=random.integers(40)):
                    group.hosts[host].courier.step([])
                    group.report()
                group.hosts[killed].restart()
                group.introduce()
            group.end(number)
            oracle.require_residuals_have_the_rest(0, 1, 2)


@pytest.mark.parametrize("killed", [False, True])
def test_progress_that_does_not_count_leaves_the_residual_as_it_was(killed):
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        oracle = ready(group)
        oracle.contribute(0, 1)
        group.begin(1, [0, 1])
        group.end(1)
        before = residuals_of(group.hosts[1])
        assert any(each.any() for each in before)
        oracle.contribute(0)
        group.begin(2, [0])  # while nobody works on the second host, whose center falls behind
        group.end(2, 0)
        oracle.contribute(1, counted=False)
        oracle.contribute(0)
        group.begin(3, [0, 1])
        if killed:
            group.until(lambda: any(isinstance(n, between.Gathered) for n in group.hosts[1].news))
            group.kill(1, 0)
        group.end(3)
        require_same_center(*group.hosts)
        for array, kept in zip(residuals_of(group.hosts[1]), before):
            assert array.tobytes() == kept.tobytes()


def test_progress_of_a_round_that_all_gave_up_counts_once():
    """The workers' timeout ended it before a decision; what they have contributed is part of their next round."""
    with Group([1.0, 1.0], PLAIN, compression="topk(0.01)") as group:
        oracle = ready(group)
        oracle.contribute(0, 1)
        group.begin(1, [0, 1])
        group.end(1)
        oracle.contribute(0, 1)
        group.begin(2, [0, 1])
        has_all = [host.news for host in group.hosts]
        group.until(lambda: all(sum(isinstance(n, between.Gathered) for n in news) == 2 for news in has_all))
        group.begin(3, [0, 1])
        group.end(3)
        oracle.require_residuals_have_the_rest(0, 1)


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_host_lost_in_the_midst_counts_on_all_others_or_on_none(has_sent):
    with Group([1.0, 1.0, 1.0], PLAIN, compression="int8") as group:
        oracle = ready(group)
        oracle.contribute(0, 1, 2)
        group.begin(1, [0, 1, 2])
        group.end(1)
        oracle.contribute(0, 1, 2)
        if has_sent:
            group.begin(2, [0, 1, 2])
            has_all = [host.news for host in group.hosts[:2]]
            group.until(lambda: all(sum(isinstance(n, between.Gathered) for n in news) == 2 for news in has_all))
            group.lose(2)
        else:
            group.lose(2)
            group.begin(2, [0, 1])
        group.end(2, 0, 1)
        oracle.contribute(0, 1)
        group.begin(3, [0, 1])
        group.end(3, 0, 1)
        require_same_center(*group.hosts[:2])


def test_an_overwritten_center_gets_nothing_of_earlier_training():
    with Group([1.0, 1.0], PLAIN, compression="topk(0.01)") as group:
        oracle = ready(group)
        oracle.contribute(0, 1)
        group.begin(1, [0, 1])
        group.end(1)
        writing = threading.Thread(target=group.hosts[1].center.write, args=(model(5.0), True, 20))
        writing.start()
        group.until(lambda: not writing.is_alive())
        for host in group.hosts:
            host.center.read(host.params, True, 10, begin=True)
            host.contribute(0.0)
        group.begin(2, [0, 1])
        group.end(2)
        require_same_center(*group.hosts)
        assert all((array == 5).all() for array in group.hosts[0].center.values)


def test_a_stripe_without_a_contribution_adds_nothing_and_keeps_its_residual():
    with Group([1.0], PLAIN, compression="int4") as group:
        (host,) = group.hosts
        rounds = host.center.across_hosts
        residuals = Residuals(host.layout, host.memory)
        for array in residuals.latest:
            array[...] = 0.25
        carriage = CompressedCarriage(rounds, Blocks(4), residuals, host.center.overwrites)
        own = rounds.new_totals()
        for array in own.arrays:
            array[...] = 1.0
        own.number, own.counts[:] = 4, [1, 0]
        received = carriage.buffer()
        received.buffer[:] = carriage.seal(own)
        theirs = carriage.open(received)
        silent = next(iter(own.without_contribution()))
        for totals in (own, theirs):
            assert totals.counts.tolist() == [1, 0]
            assert totals.arrays[0][0] == pytest.approx(1.25)
            assert totals.arrays[0][-1] == 0
        assert residuals.latest[0][-1] == 0.25
        assert [piece.parameter for piece in silent] == [0, 1]


def test_nan_is_not_hidden_and_does_not_stay():
    with Group([1.0], PLAIN, compression="int8") as group:
        (host,) = group.hosts
        rounds, residuals = host.center.across_hosts, Residuals(host.layout, host.memory)
        carriage = CompressedCarriage(rounds, Blocks(8), residuals, host.center.overwrites)
        own = rounds.new_totals()
        own.number, own.counts[:] = 1, 1
        own.arrays[0][5] = np.nan
        carriage.seal(own)
        assert np.flatnonzero(np.isnan(own.arrays[0])).tolist() == [5]
        assert all(np.isfinite(array).all() for array in residuals.latest)


def test_the_mean_of_centers_of_workers_that_do_not_wait_is_exact():
    with Group([1.0, 1.0], EASGD(0.5), compression="int4") as group:
        ready(group)
        random = np.random.default_rng(1)
        starts = [[random.standard_normal(a.shape).astype(a.dtype) for a in model(0)] for _ in group.hosts]
        for host, start in zip(group.hosts, starts):
            host.center.fill(start, [])
        group.begin(1, [0, 1])
        group.end(1)
        require_same_center(*group.hosts)
        for found, a, b in zip(group.hosts[0].center.values, *starts):
            np.testing.assert_allclose(found, (a + b) / 2, atol=1e-6)


def test_a_host_has_no_memory_for_residuals_without_compression():
    with Group([1.0], PLAIN) as group:
        (host,) = group.hosts
        host.courier.handle_order(between.Made())
        assert not any(host.memory)
