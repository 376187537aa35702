"""Rounds in fragments on several hosts, by real couriers and centers: equal bits on every path, and fewer bytes."""

import numpy as np
import pytest
from rounds_in_turns import KILLS, Group, require_same_center, state_of

from platoon_base.centers.stripes import cut
from platoon_base.compression.packing import Residuals
from platoon_base.courier import courier
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import TOTALS, Conversation
from platoon_base.rules import DiLoCo

pytestmark = pytest.mark.base

RULE = DiLoCo(0.5, 0.5, fragments=3)
ROUNDS = 7


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


def train(group, hosts, number):
    """Let the workers of these hosts train, each its own way, and contribute to a round."""
    for host in hosts:
        random = np.random.default_rng([number, host])
        for array in group.hosts[host].params:
            array += random.standard_normal(array.shape).astype(array.dtype)
        assert group.hosts[host].center.contribute(group.hosts[host].params, 1.0, 10) is None


def bits(group):
    """Return all bits of the centers, of the workers and of the residuals."""
    require_same_center(*group.hosts)
    found = []
    for host in group.hosts:
        values, states = host.center.snapshot()
        residuals = Residuals(host.layout, host.memory).latest if np.frombuffer(host.memory, np.uint8).any() else []
        found.append([array.tobytes() for arrays in (values, *states, host.params, residuals) for array in arrays])
    return found


def make(group, number, disturb=lambda: None):
    hosts = range(len(group.hosts))
    train(group, hosts, number)
    group.begin(number, hosts)
    disturb()
    group.end(number)


def undisturbed(count, codec):
    with Group([1.0] * count, RULE, compression=codec) as group:
        group.get_ready()
        found = []
        for number in range(1, ROUNDS + 1):
            make(group, number)
            found.append(bits(group))
        return found


EXPECTED = {}


def expected(count, codec):
    if (count, codec) not in EXPECTED:
        EXPECTED[count, codec] = undisturbed(count, codec)
    return EXPECTED[count, codec]


CODECS = ("none", "int4")


def kills(other):
    """Return each kill with one of the codecs, or with the other one."""
    return [(*each, CODECS[(sum(each[1:]) + other) % 2]) for each in KILLS]


@pytest.mark.parametrize(
    ("hosts", "killed", "steps", "codec"),
    [*kills(0), *(pytest.param(*each, marks=pytest.mark.product) for each in kills(1))],
)
def test_a_courier_that_is_killed_at_any_step_changes_no_bit(hosts, killed, steps, codec):
    with Group([1.0] * hosts, RULE, compression=codec) as group:
        group.get_ready()
        for number in range(1, 6):
            make(group, number, lambda at=number: group.kill(killed, steps) if at == 4 else None)
            assert bits(group) == expected(hosts, codec)[number - 1]


def test_a_round_leaves_the_other_fragments_alone():
    with Group([1.0, 1.0], RULE, compression="int4") as group:
        group.get_ready()
        host = group.hosts[0]
        before = [array.copy() for array in host.center.values]
        for number in range(1, 7):
            make(group, number)
            taken = [np.zeros(array.shape, bool) for array in before]
            for mask in cut(taken, host.center.fragments.of_round(number).pieces):
                mask[...] = True
            changed = [a != b for a, b in zip(host.center.values, before)]
            assert not any((c & ~t).any() for c, t in zip(changed, taken))
            assert sum(c.sum() for c in changed) > 0.9 * sum(t.sum() for t in taken)
            before = [array.copy() for array in host.center.values]


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_round_sends_its_fragment_alone(codec, monkeypatch):
    posted, post = [], Conversation.post

    def counting(conversation, kind, data):
        posted.append((kind, len(data)))
        post(conversation, kind, data)

    monkeypatch.setattr(Conversation, "post", counting)

    def sent(fragments):
        posted.clear()
        with Group([1.0, 1.0], DiLoCo(0.5, 0.5, fragments=fragments), compression=codec) as group:
            group.get_ready()
            for number in range(1, 4):
                make(group, number)
        return [size for kind, size in posted if kind == TOTALS]

    whole, thirds = sent(1), sent(3)
    assert len(whole) == len(thirds) == 6
    assert max(thirds) < 0.36 * min(whole)
    assert sum(thirds) == pytest.approx(sum(whole) / 3, rel=0.01)


def test_a_residual_stays_until_the_second_round_after_it_is_packed():
    with Group([1.0, 1.0], RULE, compression="int4") as group:
        group.get_ready()
        residuals = Residuals(group.hosts[1].layout, group.hosts[1].memory)
        latest = None
        for number in range(1, ROUNDS + 1):

            def packed(number=number, latest=latest):
                has_all = group.hosts[1].news
                group.until(lambda: any(isinstance(n, between.Gathered) and n.number == number for n in has_all))
                if latest is not None:
                    found = residuals.after(number - 1, 0)
                    assert [array.tobytes() for array in found] == latest

            make(group, number, packed)
            latest = [array.tobytes() for array in residuals.after(number, 0)]


def test_progress_that_does_not_count_leaves_the_residual_as_it_was():
    with Group([1.0, 1.0], RULE, compression="int4") as group:
        group.get_ready()
        for number in (1, 2, 3):
            make(group, number)
        second = Residuals(group.hosts[1].layout, group.hosts[1].memory)
        before = [array.tobytes() for array in second.latest]
        for number in (4, 5, 6):  # while nobody works on the second host, whose center falls behind
            train(group, [0], number)
            group.begin(number, [0])
            group.end(number, 0)
        train(group, [0, 1], 7)  # on the second host to the fragment of round 4, which is that of round 7
        group.begin(7, [0, 1])
        group.end(7)
        require_same_center(*group.hosts)
        assert [array.tobytes() for array in second.latest] == before
        for number in (8, 9, 10, 11):
            make(group, number)
            require_same_center(*group.hosts)


def test_a_job_goes_on_with_saved_residuals_as_if_it_had_not_been_interrupted():
    def whole(group, first):  # all workers are at the center afterwards
        for number in range(first, first + 3):
            make(group, number)
        for host in group.hosts:
            host.center.read(host.params, True, 10, begin=True)

    with Group([1.0, 1.0], RULE, compression="int4") as group:
        group.get_ready()
        whole(group, 1)
        values, states = group.hosts[0].center.snapshot()
        saved = [[a.copy() for a in Residuals(h.layout, h.memory).after(3, 0)] for h in group.hosts]
        for number in range(4, 10):
            make(group, number)
        expected = bits(group)
    with Group([1.0, 1.0], RULE, compression="int4") as again:
        for host, residuals in zip(again.hosts, saved):
            host.center.fill(values, states)
            Residuals(host.layout, host.memory).restore(residuals)
        again.get_ready()
        for number in range(1, 7):
            for host in range(2):
                random = np.random.default_rng([number + 3, host])
                for array in again.hosts[host].params:
                    array += random.standard_normal(array.shape).astype(array.dtype)
                again.hosts[host].center.contribute(again.hosts[host].params, 1.0, 10)
            again.begin(number, [0, 1])
            again.end(number)
        assert bits(again) == expected


def test_an_overwritten_center_gets_nothing_of_earlier_training():
    with Group([1.0], RULE, compression="int4") as group:
        (host,) = group.hosts
        residuals = Residuals(host.layout, host.memory)
        for stamp, number in ((0, 1), (0, 2), (5, 3)):
            before, after = residuals.begin(number, stamp, lambda n: host.center.fragments.of_round(n).pieces)
            assert stamp == 0 or not any(array.any() for array in (*before, *after))
            for array in after:
                array[...] = 7
            residuals.end(number)


def test_the_step_of_a_round_that_overlaps_is_made_on_each_host_by_those_of_the_next_one():
    with Group([1.0, 1.0], RULE) as group:
        group.get_ready()
        train(group, [0, 1], 1)
        group.begin(1, [0, 1])
        centers = [host.center for host in group.hosts]
        for center in centers:
            center.note_met(1, 10)
        group.until(lambda: group.report() or all(center.across_hosts.are_gathered(1) for center in centers))
        group.until(lambda: all(center.across_hosts.are_gathered(1) for center in centers))
        group.begin(2, [0, 1])
        group.end(2)
        require_same_center(*group.hosts)
        found = state_of(group.hosts[0])
    with Group([1.0, 1.0], RULE) as group:
        group.get_ready()
        make(group, 1)
        assert state_of(group.hosts[0]) == found


def test_what_was_contributed_to_a_round_that_was_given_up_counts_at_the_next_turn():
    with Group([1.0, 1.0], RULE) as group:
        group.get_ready()
        train(group, [0, 1], 1)
        for host in group.hosts:
            host.center.note_met(1, 10)
        for number in (2, 3):
            make(group, number)
        before = [array.copy() for array in group.hosts[0].center.values]
        make(group, 4)
        require_same_center(*group.hosts)
        assert any((a != b).any() for a, b in zip(group.hosts[0].center.values, before))


def test_who_fetches_the_center_keeps_the_contributions_to_other_fragments():
    with Group([1.0, 1.0], RULE) as group:
        group.get_ready()
        make(group, 1)
        make(group, 2)
        values, states = group.hosts[0].center.snapshot()
        assert group.hosts[1].center.replace(values, states, 2)
        make(group, 3)
        assert bits(group) == expected(2, "none")[2]


@pytest.mark.parametrize("codec", ["none", "int4"])
@pytest.mark.parametrize("has_sent", [False, True])
def test_a_host_lost_in_the_midst_counts_on_all_others_or_on_none(has_sent, codec):
    with Group([1.0, 1.0, 1.0], RULE, compression=codec) as group:
        group.get_ready()
        make(group, 1)
        train(group, [0, 1, 2], 2)
        if has_sent:
            group.begin(2, [0, 1, 2])
            has_all = [host.news for host in group.hosts[:2]]
            group.until(lambda: all(sum(isinstance(n, between.Gathered) for n in news) == 2 for news in has_all))
            group.lose(2)
        else:
            group.lose(2)
            group.begin(2, [0, 1])
        group.end(2, 0, 1)
        for number in (3, 4, 5, 6):
            train(group, [0, 1], number)
            group.begin(number, [0, 1])
            group.end(number, 0, 1)
            require_same_center(*group.hosts[:2])


@pytest.mark.parametrize("seed", range(4))
def test_couriers_that_are_killed_again_and_again_change_no_bit(seed):
    random = np.random.default_rng(seed)
    with Group([1.0, 1.0, 1.0], RULE, compression="int4") as group:
        group.get_ready()

        def kill():
            for killed in random.integers(3, size=random.integers(3)):
                for host in random.integers(3, size=random.integers(40)):
                    group.hosts[host].courier.step([])
                    group.report()
                group.hosts[killed].restart()
                group.introduce()

        for number in range(1, ROUNDS + 1):
            make(group, number, kill)
            assert bits(group) == expected(3, "int4")[number - 1]
