"""Rounds of workers on several hosts, by real couriers and centers: who is behind, idle, lost or cut off meanwhile.

Workers that wait for each other make exact and compressed rounds; those that do not, find their mean.
The hosts are turns of one loop; jobs with real launchers are in jobs/test_rounds_of_hosts.py.
"""

import contextlib
import hashlib
import threading
import time
import tracemalloc

import numpy as np
import pytest
from rounds_in_turns import RULE, Group, model, require_alike, require_same_center, state_of

from platoon_base.compression.codecs import Blocks
from platoon_base.compression.packing import Residuals
from platoon_base.courier import courier
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import TOTALS, Conversation
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.rules import EASGD, CenterMomentum, DiLoCo

pytestmark = pytest.mark.base

PLAIN = DiLoCo(1.0, 0.0)  # the center moves by the mean of what the workers have added
MEAN = EASGD(0.5)  # its workers wait for no one, but for the mean
# The rule and the codec of each kind of rounds.
KINDS = {
    "exact": (RULE, "none"),
    "int4": (RULE, "int4"),
    "topk": (RULE, "topk(0.1)"),
    "mean": (MEAN, "none"),
}
CODECS = ["float16", "bfloat16", "int8", "int4", "int2", "topk(0.01)"]


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


@contextlib.contextmanager
def group_of(kind, hosts):
    """Make hosts with equal centers."""
    rule, codec = KINDS[kind]
    with Group([1.0] * hosts, rule, compression=codec) as group:
        group.get_ready()
        yield group


def train(group, hosts, number):
    """Let the workers of these hosts train, each its own way, and contribute to a round."""
    for each in hosts:
        host, random = group.hosts[each], np.random.default_rng([number, each])
        if host.rule is MEAN:
            host.center.fill([random.standard_normal(a.shape).astype(a.dtype) for a in host.params], [])
            continue
        for array in host.params:
            array += random.standard_normal(array.shape).astype(array.dtype)
        assert host.center.contribute(host.params, 1.0, 10) is None


def make(group, number, disturb=lambda: None, hosts=None):
    hosts = hosts or range(len(group.hosts))
    train(group, hosts, number)
    group.begin(number, hosts)
    disturb()
    group.end(number, *hosts)


def digest(data):
    return hashlib.sha256(data).digest()


def bits(group):
    """Return digests of all bits of the centers, of the workers and of the residuals; many are kept."""
    require_same_center(*group.hosts)
    found = []
    for host in group.hosts:
        values, states = host.center.snapshot()
        residuals = Residuals(host.layout, host.memory).latest if np.frombuffer(host.memory, np.uint8).any() else []
        arrays = [array for arrays in (values, *states, host.params, residuals) for array in arrays]
        found.append([digest(array.tobytes()) for array in arrays])
    return found


EXPECTED = {}


def expected(kind, hosts):
    """Return the bits after each of five rounds that nothing disturbs."""
    if (kind, hosts) not in EXPECTED:
        with group_of(kind, hosts) as group:
            found = EXPECTED[kind, hosts] = []
            for number in range(1, 6):
                make(group, number)
                found.append(bits(group))
    return EXPECTED[kind, hosts]


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
        group.get_ready()
        oracle = OneHost(1.0)
        for number in (1, 2, 3):
            for host, progress in zip(group.hosts, (1.0, 2.0, 6.0)):
                host.contribute(progress * number)
            group.begin(number, [0, 1, 2])
            group.end(number)
            require_alike(*group.hosts)
            assert group.hosts[1].params[1][0] == pytest.approx(oracle.round(number, 2.0 * number, 6.0 * number))
        assert not any(any(host.memory) for host in group.hosts)  # without compression there are no residuals


class Oracle:
    """What the center of hosts without compression would be, in float64; what it lacks is on the hosts as residuals."""

    def __init__(self, group):
        self.group = group
        self.center = [np.array(each, "f8") for each in group.hosts[0].center.values]
        self.random = np.random.default_rng(7)

    def contribute(self, *hosts):
        """Let the worker of each host add numbers of its own."""
        for number in hosts:
            host = self.group.hosts[number]
            progress = [self.random.standard_normal(a.shape).astype(a.dtype) for a in host.params]
            for array, start, added in zip(host.params, host.center.values, progress):
                np.copyto(array, start + added)
            for total, array, start in zip(self.center, host.params, host.center.values):
                total += (array - start).astype("f8") / len(hosts)
            assert host.center.contribute(host.params, 1.0, 10) is None

    def require_residuals_have_the_rest(self, *hosts):
        require_same_center(*self.group.hosts)
        residuals = [Residuals(self.group.hosts[each].layout, self.group.hosts[each].memory).latest for each in hosts]
        for i, whole in enumerate(self.center):
            rest = np.mean([np.array(each[i], "f8") for each in residuals], axis=0)
            np.testing.assert_allclose(self.group.hosts[0].center.values[i] + rest, whole, atol=1e-4)


@pytest.mark.parametrize(
    ("codec", "hosts"),
    [(codec, 2 + i % 2) for i, codec in enumerate(CODECS)]
    + [pytest.param(codec, 3 - i % 2, marks=pytest.mark.product) for i, codec in enumerate(CODECS)],
)
def test_all_hosts_hold_equal_bits_and_no_progress_is_lost(codec, hosts):
    with Group([1.0] * hosts, PLAIN, compression=codec) as group:
        group.get_ready()
        oracle = Oracle(group)
        for number in range(1, 7):
            oracle.contribute(*range(hosts))
            group.begin(number, range(hosts))
            group.end(number)
            for host in group.hosts[1:]:
                for array, first in zip(host.params, group.hosts[0].params):
                    assert array.tobytes() == first.tobytes()
            oracle.require_residuals_have_the_rest(*range(hosts))


def test_progress_of_a_round_that_all_gave_up_counts_once():
    """The workers' timeout ended it before a decision; what they have contributed is part of their next round."""
    with Group([1.0, 1.0], PLAIN, compression="topk(0.01)") as group:
        group.get_ready()
        oracle = Oracle(group)
        for number in (1, 2, 3):
            if number < 3:
                oracle.contribute(0, 1)
            group.begin(number, [0, 1])
            if number == 2:
                until_gathered(group, 2, 0, 1)
            else:
                group.end(number)
        oracle.require_residuals_have_the_rest(0, 1)


def until_gathered(group, number, *hosts):
    """Wait until these hosts have the contributions of all to a round."""
    news = [group.hosts[host].news for host in hosts]
    group.until(lambda: all(any(isinstance(n, between.Gathered) and n.number == number for n in of) for of in news))


# A round takes four turns of each host; later kills come after it. `make test` makes every second kill in one kind of
# rounds, `make test-all` every kill in one kind; with the mark `rare` all kills are made in all kinds.
KILLS = [
    pytest.param(
        kind,
        hosts,
        killed,
        steps,
        marks=[pytest.mark.product] * ((killed + steps + i) % (2 * len(KINDS)) != 0)
        + [pytest.mark.rare] * ((killed + steps + i) % len(KINDS) != 0),
    )
    for i, kind in enumerate(KINDS)
    for hosts in (2, 3)
    for killed in range(hosts)
    for steps in range(5 * hosts)
]


@pytest.mark.parametrize(("kind", "hosts", "killed", "steps"), KILLS)
def test_a_courier_that_is_killed_at_any_step_changes_no_bit(kind, hosts, killed, steps):
    with group_of(kind, hosts) as group:
        for number in (1, 2, 3):
            make(group, number, lambda at=number: group.kill(killed, steps) if at == 2 else None)
            assert bits(group) == expected(kind, hosts)[number - 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.rare) for seed in range(1, 6))])
def test_couriers_that_are_killed_again_and_again_in_any_order_of_turns_change_no_bit(kind, seed):
    random = np.random.default_rng(seed)
    with group_of(kind, 3) as group:

        def kill():
            for killed in random.integers(3, size=random.integers(3)):
                for host in random.integers(3, size=random.integers(40)):
                    group.hosts[host].courier.step([])
                    group.report()
                group.hosts[killed].restart()
                group.introduce()

        for number in range(1, 6):
            make(group, number, kill)
            assert bits(group) == expected(kind, 3)[number - 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_sent", [False, True])
def test_a_host_lost_in_the_midst_counts_on_all_others_or_on_none(has_sent, kind):
    with group_of(kind, 3) as group:
        make(group, 1)
        train(group, range(3), 2)
        if has_sent:
            group.begin(2, range(3))
            until_gathered(group, 2, 0, 1)
            group.lose(2)
        else:
            group.lose(2)
            group.begin(2, [0, 1])
        group.end(2, 0, 1)
        require_same_center(*group.hosts[:2])
        if has_sent and kind != "mean":
            state = [digest(each) for each in state_of(group.hosts[0])]
            assert state == expected(kind, 3)[1][0][: len(state)]
        for number in (3, 4, 5, 6):
            make(group, number, hosts=[0, 1])
            require_same_center(*group.hosts[:2])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mean"])
def test_an_overwritten_center_gets_nothing_of_earlier_training(kind):
    with group_of(kind, 2) as group:
        number = 0
        for value in (5.0, 7.0):
            for _ in range(2):
                number += 1
                make(group, number)
            writing = threading.Thread(target=group.hosts[1].center.write, args=(model(value), True, 20))
            writing.start()
            group.until(lambda thread=writing: not thread.is_alive())
            require_same_center(*group.hosts)
            for host in group.hosts:
                host.center.read(host.params, True, 10, begin=True)
            number += 1
            for host in group.hosts:
                host.contribute(0.0)
            group.begin(number, [0, 1])
            group.end(number)
            require_same_center(*group.hosts)
            assert all((array == value).all() for array in group.hosts[0].center.values)


@pytest.mark.parametrize("killed", [False, True])
def test_progress_that_does_not_count_leaves_the_residual_as_it_was(killed):
    with group_of("int4", 2) as group:
        make(group, 1)
        second = Residuals(group.hosts[1].layout, group.hosts[1].memory)
        before = [array.tobytes() for array in second.latest]
        assert any(array.any() for array in second.latest)
        make(group, 2, hosts=[0])  # while nobody works on the second host, whose center falls behind

        def kill():
            if killed:
                until_gathered(group, 3, 1)
                group.kill(1, 0)

        make(group, 3, kill)
        require_same_center(*group.hosts)
        assert [array.tobytes() for array in second.latest] == before
        for number in range(4, 8):
            make(group, number)
            require_same_center(*group.hosts)


def test_no_order_of_arrival_on_hosts_changes_a_bit():
    """Three workers on each host contribute in another order; two of them extend the memory."""
    found = set()
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        with group_of("exact", 2) as group:
            for number, host in enumerate(group.hosts):
                others = [host.centers.attach(host.layout, RULE, rank) for rank in (1, 2)]
                for rank in order:
                    center, random = [host.center, *others][rank], np.random.default_rng([number, rank])
                    params = model(0.0)
                    center.read(params, True, 10, begin=True)
                    learned = [a + random.standard_normal(a.shape).astype(a.dtype) for a in params]
                    assert center.contribute(learned, 1.0, 10) is None
                for center in others:
                    center.close()
            group.begin(1, [0, 1], workers=[3, 3])
            group.end(1)
            require_same_center(*group.hosts)
            found.add(tuple(map(digest, state_of(group.hosts[0]))))
    assert len(found) == 1


def test_a_worker_that_comes_between_the_exchange_and_the_step_is_too_late_for_both():
    with group_of("exact", 2) as group:
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
    with group_of("exact", 2) as group:
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


@pytest.mark.parametrize(
    ("killed", "steps"),
    [
        pytest.param(killed, steps, marks=[pytest.mark.product] * ((killed + steps) % 2))
        for killed in (0, 1)
        for steps in range(8)
    ],
)
def test_a_host_without_workers_gets_the_center_though_a_courier_is_killed(killed, steps):
    with group_of("exact", 2) as group:
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


@pytest.mark.parametrize(
    ("rule", "workers", "codec"),
    [(MEAN, [1, 1], "int4"), (MEAN, [1, 2, 1], "none"), (CenterMomentum(0.5, 0.9, 0.0), [3, 1], "none")],
    ids=repr,
)
def test_workers_that_do_not_wait_find_their_exact_mean_on_all_hosts_and_exchanges_leave_it(rule, workers, codec):
    with Group([1.0] * len(workers), rule, workers, codec) as group:
        group.get_ready()
        for number in (1, 2, 5):
            starts = []
            for host in group.hosts:
                random = np.random.default_rng([number, host.world.host])
                starts.append([random.normal(size=a.shape).astype(a.dtype) for a in model(0)])
                host.center.fill(starts[-1], [])
            group.begin(number, range(len(workers)), workers=workers)
            group.end(number)
            require_same_center(*group.hosts)
            for found, *each in zip(group.hosts[0].center.values, *starts):
                np.testing.assert_allclose(found, np.average(each, axis=0, weights=workers), atol=1e-6)
        before, state = [host.exchanges for host in group.hosts], state_of(group.hosts[0])
        group.until(lambda: all(host.exchanges > count + 3 for host, count in zip(group.hosts, before)))
        assert codec != "none" or all(state_of(host) == state for host in group.hosts)


def test_a_center_with_nan_does_not_count(caplog):
    with group_of("mean", 2) as group:
        train(group, [0], 1)
        start = group.hosts[0].center.values[0].copy()
        group.hosts[1].center.fill(model(np.nan), [])
        group.begin(1, [0, 1])
        group.end(1)
        require_same_center(*group.hosts)
        np.testing.assert_array_equal(group.hosts[1].center.values[0], start)
    assert "NaN" in caplog.text


def test_a_round_that_another_host_never_ends_has_a_deadline():
    with group_of("exact", 2) as group:
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
    with group_of("exact", 3) as group:
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
    with group_of("exact", 2) as group:
        begin_first_round(group, [0, 1], [])
        end_first_round(group, [0, 1])
        group.hosts[0].take_over(1)
        want_until_made(group, [1, 0], 1)


def totals_of(host, bits):
    return Residuals(host.layout, host.memory), *(host.center.across_hosts.new_totals(Blocks(bits)) for _ in range(2))


def test_a_stripe_without_a_contribution_adds_nothing_and_keeps_its_residual():
    with Group([1.0], PLAIN, compression="int4") as group:
        residuals, own, theirs = totals_of(group.hosts[0], 4)
        for array in residuals.latest:
            array[...] = 0.25
        for array in own.arrays:
            array[...] = 1.0
        own.number, own.counts[:] = 4, [1, 0]
        own.pack(residuals, group.hosts[0].center.overwrites.version)
        theirs.buffer[:] = own.buffer
        theirs.unpack()
        silent = next(iter(own.without_contribution()))
        for totals in (own, theirs):
            assert totals.counts.tolist() == [1, 0]
            assert totals.arrays[0][0] == pytest.approx(1.25)
            assert totals.arrays[0][-1] == 0
        assert residuals.latest[0][-1] == 0.25
        assert [piece.parameter for piece in silent] == [0, 1]


def test_nan_is_not_hidden_and_does_not_stay():
    with Group([1.0], PLAIN, compression="int8") as group:
        residuals, own, _ = totals_of(group.hosts[0], 8)
        own.number, own.counts[:] = 1, 1
        for array in own.arrays:
            array[...] = 0
        own.arrays[0][5] = np.nan
        own.pack(residuals, group.hosts[0].center.overwrites.version)
        assert np.flatnonzero(np.isnan(own.arrays[0])).tolist() == [5]
        assert all(np.isfinite(array).all() for array in residuals.latest)


@pytest.mark.parametrize(("codec", "least"), [("none", 1.0), ("int8", 3.8)])
def test_a_round_sends_each_contribution_once_and_compressed(codec, least, monkeypatch):
    posted, post = [], Conversation.post

    def counting(conversation, kind, data):
        posted.append((kind, len(data)))
        post(conversation, kind, data)

    monkeypatch.setattr(Conversation, "post", counting)

    with Group([1.0, 1.0], DiLoCo(0.5, 0.5), compression=codec) as group:
        group.get_ready()
        for number in range(1, 4):
            make(group, number)
    sent = [size for kind, size in posted if kind == TOTALS]
    assert len(sent) == 6
    assert max(sent) < 1.01 * sum(array.nbytes for array in model(0)) / least


def test_the_step_of_a_round_that_overlaps_is_made_on_each_host_by_those_that_complete_it():
    with group_of("exact", 2) as group:
        train(group, [0, 1], 1)
        group.begin(1, [0, 1])
        centers = [host.center for host in group.hosts]
        for center in centers:
            center.note_met(1, 10)
        group.until(lambda: group.report() or all(center.across_hosts.are_gathered(1) for center in centers))
        group.until(lambda: all(center.across_hosts.are_gathered(1) for center in centers))
        group.end(1)
        assert bits(group) == expected("exact", 2)[0]
