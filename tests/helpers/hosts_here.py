"""Groups over several hosts within this process: ranks are threads, and each host has shared memory of its own.

Real handshakes and TCP connections over 127.0.0.1 lie between the hosts.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec

from platoon_base.collectives.host_exchange import GroupSegment
from platoon_base.collectives.hosts import HostsCollective
from platoon_base.hosts import World
from platoon_base.job.files import segment_prefix
from platoon_base.links.handshake import Listener, open_links
from platoon_base.system.process import awake

KEY = "c3" * 32
_numbers = itertools.count()


def world_of(workers, host, key=KEY):
    hosts = len(workers)
    return World(list(workers), host, [f"h{i}" for i in range(hosts)], ["127.0.0.1"] * hosts, key)


def linked(workers, key=KEY, timeout_s=20.0):
    """Open the links of all lanes; returns for each rank the pairs of a host and a stream."""
    world = world_of(workers, 0, key)
    lanes = min(workers)
    places = [(host, lane) for host in range(world.hosts) for lane in range(lanes)]
    listeners = {place: Listener("127.0.0.1") for place in places}
    deadline = awake() + timeout_s

    def open_those_of(host, lane):
        rank_on = {other: world.ranks_on(other)[lane] for other in range(world.hosts)}
        calls = {rank_on[other]: listeners[other, lane].address for other in range(host)}
        expected = frozenset(rank_on[other] for other in range(host + 1, world.hosts))
        mine = rank_on[host]
        found = open_links(
            listeners[host, lane], mine, bytes.fromhex(key), calls, expected, deadline, lambda ranks: None
        )
        return mine, [(world.host_of(rank), stream) for rank, stream in found.items()]

    try:
        with ThreadPoolExecutor(len(places)) as pool:
            return dict(pool.map(lambda place: open_those_of(*place), places))
    finally:
        for listener in listeners.values():
            listener.close()


class Ranks:
    """The ranks of a group as threads of this process, each with its own handle; what derives from it makes these."""

    def __init__(self, members):
        self.members = members
        self._threads = ThreadPoolExecutor(len(members))

    def start(self, call, *members):
        """Let these members (all by default) do ``call(member)``; returns futures."""
        return [self._threads.submit(call, member) for member in members or self.members]

    def run(self, call):
        """Let all members do ``call(member)``; returns the results."""
        return [future.result() for future in self.start(call)]

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for member in self.members:
            member.close()
        self._threads.shutdown()


class HostsGroup(Ranks):
    """The ranks of a group over several hosts."""

    def __init__(self, workers, form, liveness=None, chunk_bytes=4096, ranks=None, key=KEY, compression="none"):
        size = sum(workers)
        self.workers = list(workers)
        self.liveness = liveness
        self.ranks = list(ranks or range(size))
        self.name = f"{segment_prefix()}test{os.getpid()}-hosts{next(_numbers)}"
        members = []
        streams = linked(workers, key)
        for host in range(len(workers)):
            world = msgspec.structs.replace(world_of(workers, host, key), compression=compression)
            local = tuple(self.ranks[i] for i in world.ranks_here)
            for index, rank in enumerate(world.ranks_here):
                if index == 0:
                    shared = GroupSegment.create(f"{self.name}-{host}", local, chunk_bytes)
                else:
                    shared = GroupSegment.attach(f"{self.name}-{host}", local)
                links = streams.get(rank, [])
                members.append(HostsCollective(shared, index, world, self.ranks, links, liveness[rank], form))
        super().__init__(members)
