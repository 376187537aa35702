"""Hosts with real centers and couriers, which are turns of one loop."""

import os
import threading
import time
import uuid
from unittest import mock

import numpy as np

from platoon_base.centers.host import HostCenters
from platoon_base.centers.stripes import COURIER
from platoon_base.courier import messages as between
from platoon_base.courier.courier import Courier
from platoon_base.hosts import World
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import EASGD
from platoon_base.rules.hosts import AverageHosts

KEY = "17" * 32


def model(value):
    return [np.full((300, 50), value, "float32"), np.full(7, -value, "float64"), np.full(5, value, "float16")]


def counting(host, center):
    """Count in ``host.exchanges`` how often the courier moves its center."""
    move = center.move

    def counted(*arguments, **options):
        host.exchanges += 1
        return move(*arguments, **options)

    center.move = counted
    return center


class Host:
    """One host: its center, a worker of it, and its courier."""

    memory = None  # of the launcher, for residuals

    def __init__(self, world, start, rule, hosts_rule, every_s=0.0, filled=None, make=model, moments=0):
        self.world, self.rule = world, rule
        self.params = make(start)
        self.layout = Layout.of(self.params, moments=moments)
        name = f"{segment_prefix()}test{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.centers = HostCenters(name, workers=2, hosts=2)
        self.center = self.centers.create(self.layout, rule, 0)
        self.center.fill(self.params, [])
        self.hosts_rule, self.every_s = hosts_rule, every_s
        self.filled, self.exchanges = bool(filled), 0
        self.start()

    def start(self):
        self.news = []
        self.courier = Courier(
            self.world, lambda: counting(self, self.centers.watch(self.layout, COURIER)), self.layout,
            self.hosts_rule, self.every_s, self.filled, self.news.append, self.memory,
        )  # fmt: skip

    def restart(self):
        self.courier.close()
        self.start()

    def handle_order(self, order):
        self.courier.handle_order(order)

    def sync(self):
        assert self.center.sync(self.rule, self.params, True, 10) is None

    def values(self):
        return [np.array(value) for value in self.center.values]

    def close(self):
        self.courier.close()
        self.center.close()
        self.centers.unlink()


class Hosts:
    compression, kind_of_host = "none", Host

    def __init__(self, starts, rule=None, hosts_rule=None, workers=None, key=KEY, **options):
        count = len(starts)
        worlds = [
            World(workers or [1] * count, host, ["h"] * count, ["127.0.0.1"] * count, key, compression=self.compression)
            for host in range(count)
        ]
        rule, hosts_rule = rule or EASGD(0.5), hosts_rule or AverageHosts()
        self.lost = set()
        self.hosts = [
            self.kind_of_host(world, start, rule, hosts_rule, **options) for world, start in zip(worlds, starts)
        ]

    def introduce(self, wire=None, source=0):
        living = [host for number, host in enumerate(self.hosts) if number not in self.lost]
        peers = listening_of(living)
        if wire is not None:
            peers = {number: (address, wire.to(port), token) for number, (address, port, token) in peers.items()}
        for host in living:
            host.handle_order(between.Peers(peers, source=source))

    def made(self, *hosts):
        for number in hosts or range(len(self.hosts)):
            self.hosts[number].handle_order(between.Made())

    def get_ready(self, wire=None):
        """Wait until each has exchanged its center."""
        self.introduce(wire)
        self.made()
        self.until_exchanged()

    def until_filled(self, *hosts):
        each = [self.hosts[number] for number in hosts or range(len(self.hosts))]
        self.until(lambda: all(any(isinstance(n, between.Filled) for n in host.news) for host in each))

    def until(self, condition, hosts=None, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, [host.exchanges for host in self.hosts]
            for host in hosts or self.hosts:
                host.courier.step([])

    def until_exchanged(self, hosts=None):
        """Wait until each has exchanged once more, from now on."""
        hosts = hosts or self.hosts
        before = [host.exchanges for host in hosts]
        self.until(lambda: all(host.exchanges >= count + 2 for host, count in zip(hosts, before)), hosts)

    def __enter__(self):
        # Exchanges become rare on a busy machine, which would make these tests as slow as it is busy.
        self._idle = mock.patch("os.getloadavg", return_value=(0.0, 0.0, 0.0))
        self._idle.start()
        return self

    def __exit__(self, *exc_info):
        self._idle.stop()
        for host in self.hosts:
            host.close()


def listening_of(hosts):
    """Return where the couriers of hosts listen."""
    found = [(h.world.host, next(n for n in h.news if isinstance(n, between.Listening))) for h in hosts]
    return {number: (news.address, news.port, news.token) for number, news in found}


def require_equal(arrays, others, **tolerance):
    for array, other in zip(arrays, others):
        np.testing.assert_allclose(array, other, **(tolerance or {"rtol": 1e-2}))


def overwrite(group, host, value):
    """Let the worker of a host overwrite the center, while all couriers go on."""
    writing = threading.Thread(target=group.hosts[host].center.write, args=(model(value), True, 20))
    writing.start()
    group.until(lambda: not writing.is_alive())
    writing.join()
