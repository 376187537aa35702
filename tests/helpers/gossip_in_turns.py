"""Hosts with real slots of workers that gossip and real couriers, all of them turns of one loop."""

import os
import time
import uuid

import numpy as np

from platoon_base.centers.gossip import GossipCenters
from platoon_base.centers.gossip_memory import WHOLE
from platoon_base.centers.host import COURIER
from platoon_base.courier import messages as between
from platoon_base.courier.courier import Courier
from platoon_base.hosts.world import World
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import GoSGD
from platoon_base.rules.hosts import AverageHosts

KEY = "17" * 32
NEVER, ALWAYS = GoSGD(probability=1e-12), GoSGD(probability=1.0)


class Host:
    """One host: the slots of its workers, with the parameters of each, and its courier."""

    def __init__(self, world, start, filled=True):
        self.world, self.filled = world, filled
        self.layout = Layout.of(start)
        self.dead, self.workers, self.params = set(), {}, {}
        name = f"{segment_prefix()}test{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.centers = GossipCenters(name, len(world.ranks_here), lambda rank: rank in self.dead, world)
        for rank in world.ranks_here:
            self.join(rank, start)
        self.start()

    def join(self, rank, start=None):
        self.dead.discard(rank)
        make = self.centers.create if start is not None and not self.workers else self.centers.attach
        center = self.workers[rank] = make(self.layout, NEVER, rank)
        self.params[rank] = self.layout.empty()
        if make == self.centers.create:
            center.fill(start, [])
        center.read(self.params[rank], True, 10, begin=True)

    def leave(self, rank):
        self.workers.pop(rank).close()
        self.dead.add(rank)

    def die(self, rank):
        self.dead.add(rank)
        self.workers.pop(rank).close(over=True)

    def start(self):
        self.news = []
        self.courier = Courier(
            self.world, lambda: self.centers.watch(self.layout, COURIER), self.layout, AverageHosts(), 0.0,
            self.filled, self.news.append,
        )  # fmt: skip

    def restart(self):
        self.courier.close()
        self.start()

    @property
    def listening(self):
        (found,) = [news for news in self.news if isinstance(news, between.Listening)]
        return found.address, found.port, found.token

    def close(self):
        self.courier.close()
        for center in self.workers.values():
            center.close(over=True)
        self.centers.unlink()


class Hosts:
    """The hosts of one job; their workers begin with the same values."""

    def __init__(self, start, workers, filled=True):
        count = len(workers)
        self.rounds = 0
        self.hosts = [
            Host(World(list(workers), host, ["h"] * count, ["127.0.0.1"] * count, KEY), start, filled)
            for host in range(count)
        ]
        self.watching = {}
        self.introduce()
        self.made()

    def introduce(self, *lost):
        peers = {host.world.host: host.listening for host in self.hosts if host.world.host not in lost}
        workers = {host.world.host: len(host.workers) for host in self.hosts}
        for host in self.hosts:
            host.courier.handle_order(between.Peers(peers, workers))

    def made(self):
        for host in self.hosts:
            host.courier.handle_order(between.Made())
        self.until(lambda: all(self.roads_are_known(host) for host in self.hosts))

    def roads_are_known(self, host):
        memory = self.memory(host)
        others = [other for other in self.hosts if other is not host]
        return all(memory.roads[other.world.host].workers == len(other.workers) for other in others)

    def restart(self, host):
        """End a courier without its `close`, as far as its host is concerned, and start another one."""
        self.hosts[host].restart()
        self.introduce()
        self.hosts[host].courier.handle_order(between.Made())

    def watch(self, host):
        """A handle of a host's slots that lives as long as this."""
        number = host.world.host
        if number not in self.watching:
            self.watching[number] = host.centers.watch(host.layout)
        return self.watching[number]

    def memory(self, host):
        return self.watch(host).hosts

    def where(self, rank):
        return next(host for host in self.hosts if rank in host.workers)

    def step(self, rank, by=0.0, rule=NEVER):
        """Add a step to the parameters of a worker, and synchronize it."""
        host = self.where(rank)
        for array in host.params[rank]:
            array += by
        assert host.workers[rank].sync(rule, host.params[rank], True, 10) is None

    def turn(self):
        for host in self.hosts:
            host.courier.step([])

    def until(self, condition, timeout_s=20):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    def under_way(self):
        """For each message that is not acknowledged: from where, to where, itself, and what of it is not merged."""
        for host in self.hosts:
            for road in self.memory(host).roads.values():
                if road.full:
                    number = road.message.number
                    to = self.memory(self.hosts[road.host])
                    merged = to.merged[host.world.host] if to.has_heard(host.world.host, road.message.life) else 0
                    yield road, np.where(merged < number, road.message.weights, 0).astype(object)

    def until_delivered(self):
        self.until(lambda: not any(True for _ in self.under_way()))

    @property
    def weights(self):
        """The weight of each stripe over all hosts, with what is under way, in units of all weight."""
        slots = sum(slot.weights.astype(object) for host in self.hosts for slot in self.watch(host).slots.every())
        held = sum(np.array(each.under_way, object) for host in self.hosts for each in host.workers.values())
        return [weight / WHOLE for weight in slots + held + sum(left for _, left in self.under_way())]

    def mean(self):
        """The consensus of all hosts, by their slots and what is under way, element by element of each stripe."""
        total = [np.zeros(spec.shape) for spec in self.hosts[0].layout.specs]
        weight_of = [np.zeros(spec.shape) for spec in self.hosts[0].layout.specs]

        def add(values, weights, stripes):
            for stripe in stripes:
                for piece in stripe.pieces:
                    part = slice(piece.start, piece.stop)
                    weight = int(weights[stripe.index]) / WHOLE
                    total[piece.parameter].reshape(-1)[part] += weight * values[piece.parameter].reshape(-1)[part]
                    weight_of[piece.parameter].reshape(-1)[part] += weight

        for host in self.hosts:
            for slot in self.watch(host).slots.every():
                add(slot.values, slot.weights, slot.stripes)
        for road, left in self.under_way():
            add(road.message.values, left, self.watch(self.hosts[0]).slots.every()[0].stripes)
        return [each / weight for each, weight in zip(total, weight_of)]

    def begin_round(self):
        self.rounds += 1
        hosts = [host for host in self.hosts if host.workers]
        numbers = [host.world.host for host in hosts]
        for host in hosts:
            host.courier.handle_order(between.Gather(self.rounds, numbers, [len(host.workers) for host in hosts]))
        return numbers

    def combine(self, numbers):
        for host in self.hosts:
            if host.world.host in numbers:
                host.courier.handle_order(between.Combine(self.rounds, numbers, 0, numbers[0], []))

    def make_round(self):
        """Let all workers meet for the mean of all hosts."""
        numbers = self.begin_round()
        self.combine(numbers)
        self.until(lambda: all(self.memory(self.hosts[host]).made >= self.rounds for host in numbers))

    def consensus(self, rank):
        host = self.where(rank)
        out = host.layout.empty()
        host.workers[rank].read(out, True, 10, averaged=True)
        return out

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for center in self.watching.values():
            center.close()
        for host in self.hosts:
            host.close()
