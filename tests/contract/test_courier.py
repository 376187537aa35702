"""Couriers between hosts: real centers in shared memory, real connections; the hosts are turns of one loop.

They exchange whole copies of centers or compressed differences.

Their processes, and what launchers do about them, are in jobs/test_two_hosts.py.
"""

import math
import socket
import struct
import threading
import time

import numpy as np
import pytest

from platoon_base.centers.across_hosts import RoundTotals, weighted_mean
from platoon_base.compression.codecs import Blocks
from platoon_base.compression.packing import Packing
from platoon_base.courier import background, courier
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import COPY, MOVE, TOTALS, Conversation
from platoon_base.courier.messages import LeftOut
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout
from platoon_base.links.stream import BrokenStreamError, Stream
from platoon_base.rules import ASGD, EASGD, CenterMomentum
from platoon_base.rules.hosts import DiLoCoHosts
from tests.helpers.breakable import Breakable
from tests.helpers.couriers_in_turns import KEY, Hosts, listening_of, model, overwrite, require_equal

pytestmark = pytest.mark.base


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


@pytest.fixture(params=["none", "int4"])
def compression(request, monkeypatch):
    """Let the couriers exchange whole copies of centers, or compressed differences."""
    monkeypatch.setattr(Hosts, "compression", request.param)
    return request.param


BOTH = pytest.mark.usefixtures("compression")


class Wires:
    """Connections that can be broken, carry so many bytes a second, and count what passes."""

    def __init__(self, bytes_per_s=math.inf):
        self.each, self.bytes_per_s = [], bytes_per_s

    def to(self, port):
        self.each.append(Breakable(port))
        self.each[-1].bytes_per_s = self.bytes_per_s
        return self.each[-1].port

    @property
    def passed(self):
        return sum(wire.passed for wire in self.each)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for wire in self.each:
            wire.close()


@pytest.mark.parametrize("key", [KEY, ""])
def test_all_hosts_start_from_the_values_of_the_first(key):
    with Hosts([1.0, 2.0, 3.0], key=key) as group:
        group.introduce()
        group.made()
        group.until_filled()
        for host in group.hosts:
            assert abs(host.values()[0] - 1.0).max() < 1e-6


def test_a_link_is_read_again_once_what_has_come_over_it_is_used():
    listening = socket.create_server(("127.0.0.1", 0))
    ends = socket.create_connection(listening.getsockname()), listening.accept()[0]
    layout = Layout.of([np.zeros(100)])
    sender, receiver = (Conversation(Stream(end, None, None), layout) for end in ends)
    for _ in range(2):
        sender.post(COPY, memoryview(bytearray(layout.nbytes)))
    deadline = time.monotonic() + 10
    while not receiver.waits and time.monotonic() < deadline:
        sender.talk()
        receiver.talk()
    assert receiver.fresh
    assert receiver.waits  # for the second copy there is no room
    receiver.fresh = False
    assert not receiver.waits
    for conversation in (sender, receiver):
        conversation.stream.close()
    listening.close()


def test_a_host_does_not_start_before_it_has_the_values_of_the_first():
    with Hosts([1.0, 2.0]) as group:
        group.introduce()
        group.hosts[1].courier.handle_order(between.Made())
        for _ in range(20):
            for host in group.hosts:
                host.courier.step([])
        assert not [n for n in group.hosts[1].news if isinstance(n, between.Filled)]
        group.hosts[0].courier.handle_order(between.Made())
        group.until(lambda: any(isinstance(n, between.Filled) for n in group.hosts[1].news))


@BOTH
@pytest.mark.parametrize("workers", [[1, 1], [3, 1]])
def test_centers_come_to_their_mean_weighted_by_workers(workers):
    starts = [float(i) for i in range(len(workers))]
    with Hosts(starts, workers=workers, filled=True) as group:
        group.get_ready()
        mean = np.average(starts, weights=workers)
        for host in group.hosts:
            require_equal(host.values(), model(mean))


@BOTH
@pytest.mark.parametrize("rule", [EASGD(0.5), ASGD(), CenterMomentum(0.5, 0.9, 0.0)], ids=repr)
def test_workers_move_along_with_their_center(rule):
    """A worker that equals its center equals it after the move too: no spring has pulled it back."""
    with Hosts([0.0, 4.0], rule=rule, filled=True) as group:
        for host in group.hosts:
            host.sync()
        group.get_ready()
        for host in group.hosts:
            host.sync()
            require_equal(host.params, model(2.0))
            require_equal(host.values(), model(2.0))


@BOTH
def test_a_host_that_is_lost_is_left_out_and_one_that_returns_takes_part():
    with Hosts([0.0, 3.0, 6.0], filled=True) as group:
        group.get_ready()
        lost = group.hosts[2]
        lost.courier.close()
        for host in group.hosts[:2]:
            host.courier.handle_order(between.Lost(2))
        two = group.hosts[:2]
        group.until_exchanged(two)
        for host, start in zip(two, (10.0, 20.0)):
            host.center.fill(model(start), [])
        group.until(lambda: abs(two[0].values()[0] - 15.0).max() < 0.1, two)
        assert abs(lost.values()[0] - 3.0).max() < 0.1


def test_a_host_that_stands_still_is_left_out_of_a_round_and_delays_no_other_for_long():
    with Hosts([0.0, 3.0, 6.0], filled=True) as group:
        group.get_ready()
        two = group.hosts[:2]
        began = time.monotonic()
        group.until_exchanged(two)  # the third takes no turns
        assert time.monotonic() - began < 8
        group.until_exchanged()  # it goes on


@BOTH
def test_a_center_with_nan_spreads_it_to_no_other_host(caplog):
    with Hosts([0.0, 4.0, 8.0], filled=True) as group:
        group.hosts[1].center.fill(model(np.nan), [])
        group.introduce()
        group.made()
        group.until(lambda: group.hosts[0].exchanges >= 2 and group.hosts[2].exchanges >= 2)
        for host in (group.hosts[0], group.hosts[2]):
            group.until(lambda host=host: abs(host.values()[0] - 4.0).max() < 0.01)
    assert len([r for r in caplog.records if "NaN" in r.getMessage() and "host 1" in r.getMessage()]) >= 1


@BOTH
def test_a_host_whose_own_center_has_nan_takes_part_again_once_that_is_over(caplog):
    with Hosts([np.nan, 4.0], filled=True) as group:
        group.introduce()
        group.made()
        group.until(lambda: any("host 0" in record.getMessage() for record in caplog.records))
        group.hosts[0].center.fill(model(2.0), [])
        group.until_exchanged()
        for host in group.hosts:
            require_equal(host.values(), model(3.0))
    assert len([record for record in caplog.records if "host 0" in record.getMessage()]) == 2  # each says it once


@BOTH
def test_large_numbers_of_half_precision_are_exchanged():
    def make(value):
        return [np.full(40000, value, "float16")]  # the sum of which is more than float16 can hold

    with Hosts([10.0, 20.0], filled=True, make=make) as group:
        group.get_ready()
        for host in group.hosts:
            require_equal(host.values(), make(15.0))


@pytest.mark.parametrize(("filled", "compression"), [(True, "int4"), (None, "none")], indirect=["compression"])
def test_an_exchange_that_takes_longer_than_patience_is_made(filled, compression, monkeypatch):
    monkeypatch.setattr(background, "timeout", {"stall": 1.0}.get)

    def make(value):
        return [np.full(2_000_000, value, "float32")]

    with Hosts([1.0, 3.0], filled=filled, make=make) as group, Wires(6e6) as wires:
        group.introduce(wires)
        group.made()
        group.until(lambda: all(host.exchanges for host in group.hosts), timeout_s=60)
        for host in group.hosts:
            require_equal(host.values(), make(2.0 if filled else 1.0))


def test_a_host_without_living_workers_follows_and_does_not_count():
    with Hosts([0.0, 4.0], filled=True) as group:
        group.get_ready()
        for host in group.hosts:
            host.courier.handle_order(between.Peers(listening_of(group.hosts), {0: 1, 1: 0}))
        group.until_exchanged()
        group.hosts[0].center.fill(model(10.0), [])
        group.until(lambda: abs(group.hosts[1].values()[0] - 10.0).max() < 1e-3)
        require_equal(group.hosts[0].values(), model(10.0))


def test_small_moves_of_half_precision_add_up():
    def make(value):
        return [np.full(8, value, "float16")]

    with Hosts([0.0], rule=EASGD(0.001), filled=True, make=make) as group:
        (host,) = group.hosts
        host.sync()
        for by in [4.0] + 100 * [0.001]:
            host.center.move(make(by), 0)
        host.sync()
        assert float(host.params[0][0]) == pytest.approx(4.1, abs=0.01)


def test_an_update_of_the_center_keeps_what_other_hosts_move_meanwhile():
    with Hosts([1.0]) as group:
        center = group.hosts[0].center
        old = [np.array(value) for value in center.values]
        new = [value * 2 for value in old]
        center.move([np.full_like(value, 0.5) for value in old], 0)
        center.change(old, new)
        require_equal(center.values, [value + value.dtype.type(0.5) for value in new], rtol=1e-3)


def test_a_host_that_does_not_answer_is_reported_until_it_does(monkeypatch):
    monkeypatch.setattr(courier, "timeout", {"link": 0.1}.get)
    monkeypatch.setattr(courier, "CHECK_S", 0.05)
    with Hosts([0.0, 3.0], filled=True) as group:
        group.get_ready()
        news = group.hosts[0].news
        group.until(lambda: [n for n in news if isinstance(n, LeftOut) and n.host == 1 and n.why], group.hosts[:1])
        group.until(lambda: LeftOut(1, "") in news)


def test_hosts_without_a_link_are_reported_with_the_port_and_the_reason(monkeypatch):
    monkeypatch.setattr(courier, "timeout", {"link": 0.1}.get)
    with Hosts([0.0, 3.0], filled=True) as group, socket.create_server(("127.0.0.1", 0)) as silent:
        peers = listening_of(group.hosts)
        ports = [peers[0][1], silent.getsockname()[1]]
        peers[0] = ("127.0.0.1", ports[1], peers[0][2])
        for host in group.hosts:
            host.courier.handle_order(between.Peers(peers))
        found = lambda host: [n for n in group.hosts[host].news if isinstance(n, LeftOut)]  # noqa: E731
        group.until(lambda: found(0) and found(1))
        for host, port in zip((0, 1), ports):
            assert f"port {port}" in found(host)[0].why
            assert "firewalls" in found(host)[0].why
            assert found(host)[0].never


@pytest.mark.parametrize("workers", [[1, 1], [2, 1], [1, 1, 1]])
@pytest.mark.parametrize("seed", range(2))
def test_all_that_is_learned_counts_once_whatever_stalls_or_breaks(workers, seed, compression, monkeypatch):
    """Hosts stall for longer than an exchange waits, links break, means are taken in between: nothing is lost."""
    monkeypatch.setattr(background, "timeout", {"stall": 0.02}.get)
    random, count = np.random.default_rng(seed), len(workers)

    def make(value):
        return [np.full(3000, value, "float64")]

    with Wires() as wires, Hosts([0.0] * count, rule=ASGD(), workers=workers, make=make) as group:
        for host in group.hosts:
            host.sync()
        group.introduce(wires)
        group.made()
        group.until_filled()
        learned = 0.0
        for _ in range(30):
            stalled = set(np.flatnonzero(random.random(count) < 0.2).tolist())
            quiet_wires = [wire for wire in wires.each if random.random() < 0.2]
            for wire in quiet_wires:
                wire.passing.clear()
            if random.random() < 0.2:
                wires.each[random.integers(len(wires.each))].cut()
            deadline = time.monotonic() + random.choice([0.01, 0.05])
            while time.monotonic() < deadline:
                for host in group.hosts:
                    if host.world.host not in stalled:
                        host.courier.step([])
            for wire in quiet_wires:
                wire.passing.set()
            for host, weight in zip(group.hosts, workers):
                gain = float(random.integers(1, 9))
                host.params[0] += gain
                host.sync()
                learned += gain * weight / sum(workers)
        number = 1
        for host in group.hosts:
            host.courier.handle_order(between.Gather(number, list(range(count)), workers))
        ready = lambda: all(any(isinstance(n, between.Gathered) for n in h.news) for h in group.hosts)  # noqa: E731
        group.until(ready)
        for host in group.hosts:
            host.courier.handle_order(between.Combine(number, list(range(count)), 0, 0, []))
        group.until(lambda: all(host.center.across_hosts.made == number for host in group.hosts))
        for host in group.hosts:
            np.testing.assert_allclose(host.values()[0], learned, rtol=1e-9)


@pytest.mark.parametrize(("writer", "compression"), [(0, "int4"), (1, "none")], indirect=["compression"])
def test_who_overwrites_the_center_does_so_on_all_hosts(writer, compression):
    with Hosts([0.0, 1.0, 2.0]) as group:
        group.get_ready()
        for value in (5.0, 7.0):
            overwrite(group, writer, value)
            for host in group.hosts:
                require_equal(host.values(), model(value))
        for _ in range(4):
            group.until_exchanged()
            for host in group.hosts:
                for found, expected in zip(host.values(), model(7.0)):
                    assert found.tobytes() == expected.tobytes()


def test_a_host_that_has_just_got_the_first_values_gets_what_is_overwritten_before_the_writer_goes_on():
    """Its workers may train already, while the news that it has values is on the way to the writer's host."""
    with Hosts([0.0, 1.0]) as group:
        group.introduce()
        group.made()
        group.until_filled(1)  # by its turn, and host 0 has had none since
        writing = threading.Thread(target=group.hosts[0].center.write, args=(model(5.0), True, 20))
        writing.start()
        deadline = time.monotonic() + 20
        while group.hosts[0].center.overwrites.written == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for _ in range(5):
            group.hosts[0].courier.step([])
        writing.join(0.2)
        assert writing.is_alive()
        group.until(lambda: not writing.is_alive())
        require_equal(group.hosts[1].values(), model(5.0))


def test_two_hosts_that_overwrite_the_center_at_once_agree():
    with Hosts([0.0, 1.0]) as group:
        group.get_ready()
        values = (5.0, 7.0)
        writing = [
            threading.Thread(target=host.center.write, args=(model(value), True, 20))
            for host, value in zip(group.hosts, values)
        ]
        for thread in writing:
            thread.start()
        group.until(lambda: not any(thread.is_alive() for thread in writing))
        first, second = (host.values() for host in group.hosts)
        require_equal(first, second)
        assert first[0][0, 0] in values


def test_a_host_that_comes_late_gets_what_was_overwritten():
    with Hosts([0.0, 1.0, 2.0]) as group:
        group.introduce()
        for host in group.hosts[:2]:
            host.courier.handle_order(between.Made())
        group.until_exchanged(group.hosts[:2])
        overwrite(group, 1, 5.0)
        group.hosts[2].courier.handle_order(between.Made())
        group.until_exchanged()
        for host in group.hosts:
            require_equal(host.values(), model(5.0))


def test_the_others_get_what_was_overwritten_by_a_new_courier():
    with Hosts([0.0, 1.0]) as group:
        group.get_ready()
        host = group.hosts[0]
        writing = threading.Thread(target=host.center.write, args=(model(5.0), True, 20))
        writing.start()
        deadline = time.monotonic() + 20
        while host.center.overwrites.written == 0:  # before its courier has had a turn
            assert time.monotonic() < deadline
            time.sleep(0.001)
        host.restart()
        group.introduce()
        host.courier.handle_order(between.Made())
        group.until(lambda: not writing.is_alive())
        require_equal(group.hosts[1].values(), model(5.0))


def test_without_its_courier_an_overwrite_has_a_deadline():
    with Hosts([0.0, 1.0]) as group, pytest.raises(CollectiveTimeoutError, match="other hosts"):
        group.hosts[0].center.write(model(1.0), True, 0.1)


def test_the_mean_of_half_precision_numbers_does_not_overflow():
    copies = [[np.full(3, 60000, "float16")] for _ in range(4)]
    (mean,) = weighted_mean(copies, [1, 1, 1, 1])
    np.testing.assert_array_equal(mean, np.full(3, 60000, "float16"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 2.0, 4.0], [3.0, 1.0]], ids=repr)
def test_the_mean_of_equal_centers_is_that_center_bit_by_bit(dtype, weights):
    values = np.random.default_rng(7).normal(size=1000).astype(dtype)
    (mean,) = weighted_mean([[values.copy()] for _ in weights], weights)
    assert mean.dtype == values.dtype
    np.testing.assert_array_equal(mean, values)


def scatter(group):
    """Give each center values of its own; returns their mean, in float64."""
    random = np.random.default_rng(5)
    starts = [[random.standard_normal(array.shape).astype(array.dtype) for array in model(0)] for _ in group.hosts]
    for host, start in zip(group.hosts, starts):
        host.center.fill(start, [])
    return [np.mean([np.asarray(a, "f8") for a in arrays], axis=0) for arrays in zip(*starts)]


def spread(group):
    return max(np.ptp([host.values()[i].astype("f8") for host in group.hosts], axis=0).max() for i in range(3))


@pytest.mark.parametrize("codec", ["none", "float16", "bfloat16", "int8", "int4", "int2"])
@pytest.mark.parametrize("hosts", [2, 3])
def test_centers_come_to_their_mean_as_closely_as_they_like(codec, hosts, monkeypatch):
    monkeypatch.setattr(Hosts, "compression", codec)
    with Hosts([1.0] * hosts) as group:
        group.get_ready()  # whole copies first: now differences travel
        mean = scatter(group)
        group.until(lambda: spread(group) < 2e-3)  # float16 parameters have steps of 1e-3
        for found, expected in zip(group.hosts[0].values(), mean):
            np.testing.assert_allclose(found.astype("f8"), expected, atol=0.02 if hosts == 2 else 0.5)


@BOTH
def test_outer_steps_keep_hosts_together():
    with Hosts([0.0, 4.0], hosts_rule=DiLoCoHosts(0.7, 0.5), filled=True) as group:
        group.get_ready()
        scatter(group)
        group.until(lambda: spread(group) < 0.01)


@pytest.mark.parametrize("codec", ["bfloat16", "int4"])
def test_fewer_bytes_travel_than_whole_copies_have(codec, monkeypatch):
    monkeypatch.setattr(Hosts, "compression", codec)
    with Wires() as wires, Hosts([1.0, 1.0]) as group:
        group.get_ready(wires)
        before = [host.exchanges for host in group.hosts]
        passed = wires.passed
        group.until(lambda: all(host.exchanges >= count + 40 for host, count in zip(group.hosts, before)))
        sent = sum(host.exchanges - count + 2 for host, count in zip(group.hosts, before))  # with those under way
        assert 0 < wires.passed - passed < 0.7 * sent * group.hosts[0].layout.nbytes


def test_a_link_that_breaks_begins_again_with_whole_copies(monkeypatch):
    monkeypatch.setattr(Hosts, "compression", "int4")
    with Wires() as wires, Hosts([1.0, 1.0]) as group:
        group.get_ready(wires)
        for _ in range(3):
            scatter(group)
            for _ in range(3):  # in the middle of anything
                for host in group.hosts:
                    host.courier.step([])
            for wire in wires.each:
                wire.cut()
            group.until_exchanged()
        group.until(lambda: spread(group) < 2e-3)  # What an exchange in flight still moves is small.
        mean = scatter(group)
        group.until(lambda: spread(group) < 2e-3)
        np.testing.assert_allclose(group.hosts[0].values()[0], mean[0], atol=0.02)


BROKEN = {
    "copy without content": (COPY, b""),
    "move without content": (MOVE, b""),
    "totals without content": (TOTALS, b""),
    "no kind": (99, b""),
    "move before a copy": (MOVE, bytes(64)),
    **{f"round {head}": (TOTALS, struct.pack("d", head) + bytes(120)) for head in (np.nan, np.inf, -1.0, 2.0**40)},
}


def talk(conversation):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        conversation.talk()


@pytest.mark.parametrize(("tag", "payload"), BROKEN.values(), ids=BROKEN)
def test_a_broken_record_ends_the_link_and_nothing_else(tag, payload):
    layout = Layout.of([np.zeros(16, "f4")])
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here = server.accept()[0]
    with here, there:
        conversation = Conversation(Stream(here, None, None), layout, Packing(layout, Blocks(8)))
        conversation.totals_buffer = RoundTotals(layout, [()])
        there.sendall(struct.pack("<IIQ", len(payload), tag, 0) + payload)
        with pytest.raises(BrokenStreamError, match="got"):
            talk(conversation)
    assert not conversation.fresh
    assert conversation.take_totals(1) is None


def test_without_a_center_on_the_first_host_all_start_from_another_and_so_does_the_first_later():
    with Hosts([1.0, 2.0, 3.0], rule=ASGD()) as group:
        group.introduce()
        group.made(1, 2)
        for _ in range(5):
            for host in group.hosts:
                host.courier.step([])
        assert not any(isinstance(n, between.Filled) for host in group.hosts for n in host.news)
        group.introduce(source=1)
        group.until_filled(1, 2)
        require_equal(group.hosts[2].values(), model(2.0))
        overwrite(group, 2, 7.0)  # also without a center on the first host
        require_equal(group.hosts[1].values(), model(7.0))
        group.made(0)
        group.until_filled(0)
        require_equal(group.hosts[0].values(), model(7.0))
        group.until_exchanged()


def test_a_courier_that_is_started_again_keeps_the_values_of_the_source():
    with Hosts([1.0, 2.0]) as group:
        group.introduce(source=1)
        group.made()
        group.until_filled()
        for host in group.hosts:
            require_equal(host.values(), model(2.0))
            host.filled = True
        group.hosts[1].restart()
        group.introduce(source=1)
        group.made(1)
        group.until_exchanged()
        for host in group.hosts:
            require_equal(host.values(), model(2.0))


def test_when_the_source_is_lost_all_start_from_the_next():
    """Also a host that has got values of the lost one, which the launcher did not hear of."""
    with Hosts([1.0, 2.0, 3.0, 4.0]) as group:
        group.introduce(source=1)
        group.made(1, 3)
        group.until_filled(1, 3)
        group.made(2)
        group.hosts[1].courier.close()
        rest = [group.hosts[0], *group.hosts[2:]]
        for host in rest:
            host.courier.handle_order(between.Lost(1))
        for host in rest:
            host.courier.handle_order(between.Peers(listening_of(rest), source=2))
        group.until(lambda: all(abs(host.values()[0] - 3.0).max() < 1e-6 for host in rest[1:]), rest)
        group.until_exchanged(rest[1:])
        for host in rest[1:]:
            require_equal(host.values(), model(3.0))
