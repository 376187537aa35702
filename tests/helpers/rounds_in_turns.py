"""Hosts with real centers and couriers in rounds of their workers, which are turns of one loop."""

import couriers_in_turns
import numpy as np
from couriers_in_turns import Hosts

from platoon_base.centers.host import STRIPE_BYTES
from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.multihost.courier_table import RoundTable
from platoon_base.rules import DiLoCo

RULE = DiLoCo(0.5, 0.5)


def model(value):
    return [np.full(STRIPE_BYTES // 4 + 100, value, "float32"), np.full(3, value, "float64")]  # two stripes


class Host(couriers_in_turns.Host):
    """Its courier can be killed, and is told again what it was told; the memory of its launcher stays."""

    def start(self):
        if self.memory is None:
            self.orders, self.memory = [], bytearray(Residuals.size_bytes(self.layout))
        super().start()

    def handle_order(self, order):
        self.orders.append(order)
        super().handle_order(order)

    def restart(self):
        super().restart()
        for order in self.orders:
            self.courier.handle_order(order)

    @property
    def has_center(self):
        return self.filled or any(isinstance(each, between.Filled) for each in self.news)

    def contribute(self, progress):
        for array in self.params:
            array += array.dtype.type(progress)
        assert self.center.contribute(self.params, 1.0, 10) is None

    def take_over(self, number, timeout_s=10):
        assert self.center.take_over(self.rule, self.params, number, timeout_s) is None


class Group(Hosts):
    kind_of_host = Host

    def __init__(self, starts, rule=RULE, workers=None, compression="none", moments=0):
        self.compression, self.table = compression, RoundTable()
        super().__init__(starts, rule, workers=workers, make=lambda value: model(value), moments=moments)

    def get_ready(self):
        """Let the hosts have equal centers, and couriers that are started again know it."""
        self.introduce()
        self.made()
        self.until_filled()
        self.keep_filled()

    def until(self, condition, *hosts):
        """Go on with the couriers of these hosts, by number, or of all that are not lost."""
        numbers = [number for number in hosts or range(len(self.hosts)) if number not in self.lost]
        super().until(condition, [self.hosts[number] for number in numbers])

    def until_filled(self):
        super().until_filled()
        for host in self.hosts:
            host.center.read(host.params, True, 10, begin=True)

    def keep_filled(self):
        """Let couriers that are started again know what launchers know: the centers have the values of the start."""
        for host in self.hosts:
            host.filled = True

    def begin(self, number, hosts, idle=(), workers=None):
        order = self.table.begin(number, dict(zip(hosts, workers or [1] * len(hosts))), idle)
        for host in order.hosts:
            self.hosts[host].handle_order(order)

    def lose(self, number):
        self.lost.add(number)
        self.hosts[number].courier.close()
        for host, each in enumerate(self.hosts):
            if host not in self.lost:
                each.handle_order(between.Lost(number))
        self.pass_on(self.table.mark_lost(number))

    def pass_on(self, order):
        if order is not None:
            for host in self.table.hosts:
                if host not in self.lost:
                    self.hosts[host].handle_order(order)

    def report(self):
        """Pass on what couriers say about the round; returns whether there is a decision."""
        for number, host in enumerate(self.hosts):
            for news in host.news:
                if isinstance(news, between.Gathered):
                    order = self.table.gathered(number, news)
                    self.pass_on(order)
                    if order is not None:
                        return True
        return False

    def kill(self, number, steps):
        """Kill a courier after so many turns, which the hosts take one after the other, and start another one."""
        for turn in range(steps):
            self.hosts[turn % len(self.hosts)].courier.step([])
            self.report()
        self.hosts[number].restart()
        self.introduce()

    def end(self, number, *hosts):
        """Go on until the workers of these hosts can make the step, and let them."""
        hosts = hosts or range(len(self.hosts))
        rounds = [self.hosts[host].center.across_hosts for host in hosts]
        self.until(lambda: self.report() or all(each.are_gathered(number) for each in rounds))
        self.until(lambda: all(each.are_gathered(number) for each in rounds))
        for host in hosts:
            if self.hosts[host].center.across_hosts.workers_wait:
                self.hosts[host].take_over(number)


def state_of(host):
    values, states = host.center.snapshot()
    return [array.tobytes() for arrays in (values, *states) for array in arrays]


def require_same_center(*hosts):
    assert all(state_of(host) == state_of(hosts[0]) for host in hosts)


def require_alike(*hosts):
    require_same_center(*hosts)
    for host in hosts:
        for array in host.params:
            assert (array == array.reshape(-1)[0]).all()
