"""Exchanges in the background that send compressed differences; contract/test_courier.py runs with them too.

Real centers and couriers; the hosts are turns of one loop.
"""

import socket
import struct
import time

import numpy as np
import pytest

from platoon_base.centers.fragments import Fragments
from platoon_base.centers.round_totals import RoundTotals
from platoon_base.compression.codecs import Blocks
from platoon_base.compression.packing import Packing
from platoon_base.courier import courier
from platoon_base.courier.conversation import COPY, MOVE, TOTALS, Conversation
from platoon_base.layout import Layout
from platoon_base.links.stream import BrokenStreamError, Stream
from platoon_base.rules import ASGD
from platoon_base.rules.hosts import AverageHosts, DiLoCoHosts
from tests.helpers.breakable import Breakable
from tests.helpers.couriers_in_turns import Hosts, model, overwrite

pytestmark = pytest.mark.base


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


@pytest.fixture(params=["float16", "bfloat16", "int8", "int4", "int2"])
def compressed(request, monkeypatch):
    monkeypatch.setattr(Hosts, "compression", request.param)
    return request.param


class Wires:
    """Connections that can be broken, and count what passes."""

    def __init__(self):
        self.each = []

    def to(self, port):
        self.each.append(Breakable(port))
        return self.each[-1].port

    @property
    def passed(self):
        return sum(wire.passed for wire in self.each)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for wire in self.each:
            wire.close()


def random_model(seed):
    random = np.random.default_rng(seed)
    return [random.standard_normal(array.shape).astype(array.dtype) for array in model(0)]


def scatter(group):
    """Give each center values of its own; returns their mean, in float64."""
    starts = [random_model(seed) for seed in range(len(group.hosts))]
    for host, start in zip(group.hosts, starts):
        host.center.fill(start, [])
    return [np.mean([np.asarray(a, "f8") for a in arrays], axis=0) for arrays in zip(*starts)]


def ready(group, wires=None):
    group.introduce(wires)
    group.made()
    group.until_filled()


def spread(group):
    return max(np.ptp([host.values()[i].astype("f8") for host in group.hosts], axis=0).max() for i in range(3))


@pytest.mark.parametrize("hosts", [2, 3])
def test_centers_come_to_their_mean_as_closely_as_they_like(compressed, hosts):
    with Hosts([1.0] * hosts) as group:
        ready(group)
        group.until_exchanged()  # whole copies first: now differences travel
        mean = scatter(group)
        group.until(lambda: spread(group) < 2e-3)  # float16 parameters have steps of 1e-3
        for found, expected in zip(group.hosts[0].values(), mean):
            np.testing.assert_allclose(found.astype("f8"), expected, atol=0.02 if hosts == 2 else 0.5)


def test_what_workers_learn_on_one_host_reaches_the_other(compressed):
    with Hosts([0.0, 0.0], rule=ASGD()) as group:
        for host in group.hosts:
            host.sync()
        ready(group)
        group.until_exchanged()
        for _ in range(20):
            for host, gain in zip(group.hosts, (1.0, 0.0)):
                for array in host.params:
                    array += array.dtype.type(gain / 8)
                host.sync()
            group.until_exchanged()
        group.until(lambda: spread(group) < 0.01)
        assert group.hosts[1].values()[0][0, 0] > 0.5


def test_outer_steps_keep_hosts_together(compressed):
    with Hosts([1.0, 1.0], hosts_rule=DiLoCoHosts(0.7, 0.5)) as group:
        ready(group)
        group.until_exchanged()
        scatter(group)
        group.until(lambda: spread(group) < 0.01)


def test_fewer_bytes_travel_than_whole_copies_have(compressed):
    with Wires() as wires, Hosts([1.0, 1.0]) as group:
        ready(group, wires)
        group.until_exchanged()
        before = [host.exchanges for host in group.hosts]
        passed = wires.passed
        group.until(lambda: all(host.exchanges >= count + 40 for host, count in zip(group.hosts, before)))
        sent = sum(host.exchanges - count + 2 for host, count in zip(group.hosts, before))  # with those under way
        assert 0 < wires.passed - passed < 0.7 * sent * group.hosts[0].layout.nbytes


def test_a_link_that_breaks_begins_again_with_whole_copies(compressed):
    with Wires() as wires, Hosts([1.0, 1.0]) as group:
        ready(group, wires)
        group.until_exchanged()
        for _ in range(3):
            scatter(group)
            for _ in range(3):  # in the middle of anything
                for host in group.hosts:
                    host.courier.step([])
            for wire in wires.each:
                wire.cut()
            group.until_exchanged()
        mean = scatter(group)
        group.until(lambda: spread(group) < 2e-3)
        np.testing.assert_allclose(group.hosts[0].values()[0], mean[0], atol=0.02)


def test_equal_centers_stay_equal_bit_by_bit_after_an_overwrite(compressed):
    with Hosts([1.0, 1.0], hosts_rule=AverageHosts()) as group:
        ready(group)
        group.until_exchanged()
        scatter(group)
        group.until_exchanged()
        overwrite(group, 1, 0.3)
        for _ in range(4):
            group.until_exchanged()
            for host in group.hosts:
                for found, expected in zip(host.values(), model(0.3)):
                    assert found.tobytes() == expected.tobytes()


def test_a_center_that_was_nan_takes_part_again(compressed):
    with Hosts([1.0, 1.0]) as group:
        ready(group)
        group.until_exchanged()
        group.hosts[1].center.fill(model(np.nan), [])
        for _ in range(200):
            for host in group.hosts:
                host.courier.step([])
        assert np.isfinite(group.hosts[0].values()[0]).all()
        group.hosts[1].center.fill(model(3.0), [])
        group.until(lambda: spread(group) < 0.01)
        np.testing.assert_allclose(group.hosts[0].values()[0], 2.0, atol=0.02)


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
        conversation.totals_buffer = RoundTotals(Fragments(layout, [()]))
        there.sendall(struct.pack("<IIQ", len(payload), tag, 0) + payload)
        with pytest.raises(BrokenStreamError, match="got"):
            talk(conversation)
    assert not conversation.fresh
    assert conversation.take_totals(1) is None
