"""The couriers of all hosts, which host 0 starts and leads, and its record of the other hosts."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from platoon_base.coordination.actions import CenterEvent, CenterMade, CenterSource, RoundReached
from platoon_base.coordination.roster import Roster
from platoon_base.courier.messages import (
    Combine,
    Dropped,
    Filled,
    Gather,
    Gathered,
    LeftOut,
    Listening,
    Lost,
    Made,
    News,
    Order,
    Peers,
    Start,
)
from platoon_base.hosts import World
from platoon_base.job.files import JobFiles
from platoon_base.links.peer import Peer
from platoon_base.multihost import messages as between
from platoon_base.multihost.couriers import CourierKeeper
from platoon_base.rules.hosts import hosts_rule
from platoon_base.system.environment import HOSTS_RULE
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)


@dataclass
class Member:
    """One of the other hosts. ``lost`` is the reason why it is lost, or empty."""

    host: int
    name: str
    peer: Peer
    arrived: between.Arrive
    lost: str = ""
    silent: bool = False
    replies: list[between.Forwarded] = field(default_factory=list)
    signals: int = 0
    begun: bool = False
    has_courier: bool = False

    def send(self, message: between.Down) -> None:
        """Send a message; a lost host gets only refusals and the end of the job."""
        if not self.lost or isinstance(message, (between.Refused, between.JobOver)):
            self.peer.send(between.encode(message))

    def reset(self) -> None:
        """Reset the state that belongs to an earlier job or launcher."""
        self.replies, self.signals, self.begun, self.has_courier = [], 0, False, False


class CourierTable:
    """Sends the couriers of one job their addresses, and orders about centers and rounds.

    Host 0's launcher starts its own courier here; other couriers get orders from their launchers.
    ``send(member, message)`` sends to another launcher unless it is lost. ``filled(host)`` is
    called when the center of a host holds the initial values of all hosts, and ``unreachable(host,
    why)`` when a host has had no link to another one for long.
    """

    def __init__(
        self,
        files: JobFiles,
        world: World,
        roster: Roster,
        members: Mapping[int, Member],
        send: Callable[[Member, between.Down], None],
        filled: Callable[[int], None],
        unreachable: Callable[[int, str], None],
    ) -> None:
        self._world, self._roster, self._members, self._send = world, roster, members, send
        self._filled, self._unreachable = filled, unreachable
        self._here = CourierKeeper(files, lambda news: self.handle_news(0, news))
        self._round = RoundTable()
        self._at: dict[int, tuple[str, int, str]] = {}  # Addresses of couriers, by host.
        self._made: set[int] = set()  # The hosts that have made a center.
        # Time to warn that the others wait for the center of the source.
        self._source_due_at = math.inf
        # Pairs of hosts that do not exchange: when one host is given up, and the reason.
        self._apart: dict[tuple[int, int], tuple[float, str]] = {}
        self._changed = False  # True if addresses or workers changed since they were sent.
        self._workers: dict[int, int] = {}  # Live workers by host, as sent to the couriers.
        self._changes = -1  # Version of the roster when they were counted.
        self._source = 0

    @property
    def fds(self) -> list[int]:
        return self._here.fds

    def step(self) -> None:
        self._here.step()
        if awake() > self._source_due_at:
            self._source_due_at = math.inf
            log.warning(
                "workers of host%s %s wait for the initial values of host %d, where no worker "
"has shared its parameters so far (init_shared_params, or the fit of a prepared "
"model)",
                "s" * (len(self._made) > 1), ", ".join(map(str, sorted(self._made))), self._source,
            )  # fmt: skip
        for hosts, (until, why) in list(self._apart.items()):
            if awake() > until and hosts in self._apart:
                del self._apart[hosts]
                self._unreachable(hosts[1], f"has had no link to host {hosts[0]} since both started: {why}")

    def handle_news(self, host: int, news: News) -> None:
        if isinstance(news, Listening):
            if host in self._at:
                self._roster.story.add("courier", [host], "", "started again")
            self._at[host], self._changed = (news.address, news.port, news.token), True
        elif isinstance(news, Filled):
            self._filled(host)
        elif isinstance(news, Gathered):
            self._order_round(self._round.gathered(host, news))
        elif isinstance(news, LeftOut):
            self._left_out(host, news)

    def _left_out(self, host: int, news: LeftOut) -> None:
        """Warn of two hosts that do not exchange, or exchange again; both may report it."""
        hosts = min(host, news.host), max(host, news.host)
        if bool(news.why) == (hosts in self._apart):
            return
        one, two = hosts
        if news.why:
            # Links that were open reconnect. One that was never open most likely never will be.
            # Waits for that host must not end before it is given up.
            patience_s = min(timeout("unlinked"), timeout("wait") / 3) if news.never else math.inf
            self._apart[hosts] = awake() + patience_s, news.why
            self._roster.story.add("courier", [one, two], "", "do not exchange", news.why)
            log.warning(
                "hosts %d and %d do not exchange their centers: %s",
                one, two, news.why,
            )  # fmt: skip
        else:
            del self._apart[hosts]
            self._roster.story.add("courier", [one, two], "do not exchange", "exchange again")
            log.warning("hosts %d and %d exchange their centers again", one, two)

    def take(self, event: CenterEvent) -> None:
        if isinstance(event, CenterMade):
            self._center_made(event)
        elif isinstance(event, CenterSource):
            self._center_source(event)
        elif isinstance(event, RoundReached):
            self._round_reached(event)
        else:
            self._center_dropped()

    def _center_made(self, made: CenterMade) -> None:
        """Begin the exchanges between the center of a host and those of the others."""
        self._made.add(made.host)
        due_at = min(self._source_due_at, awake() + timeout("link"))
        self._source_due_at = math.inf if self._source in self._made else due_at
        layout = made.shared.layout
        specs = [(spec.name, tuple(spec.shape), spec.dtype) for spec in layout.specs]
        rule, every_s = os.environ.get(HOSTS_RULE) or "average", timeout("exchange")
        hosts_rule(rule)  # Raises an error if it is wrong.
        without = [member for member in self._members.values() if not member.lost and not member.has_courier]
        for member in without:
            member.has_courier = self._changed = True
        self._order([0, *(member.host for member in without)], Start(specs, layout.moments, rule, every_s))
        self._order([made.host], Made())

    def _center_source(self, source: CenterSource) -> None:
        """Start the centers of all hosts from the values of a host other than host 0."""
        log.warning("%s: new centers start from the values of host %d", source.why, source.host)
        self._roster.story.add("host", [source.host], "", "provides the initial values of all centers", source.why)
        self._source, self._changed, self._source_due_at = source.host, True, math.inf

    def _round_reached(self, met: RoundReached) -> None:
        """Let hosts exchange the contributions of their workers to a round."""
        lost = {member.host for member in self._members.values() if member.lost}
        hosts = {host: workers for host, workers in met.hosts.items() if host not in lost}
        self._order_round(self._round.begin(met.number, hosts, self._at.keys() - lost - hosts.keys()))

    def _order_round(self, order: Gather | Combine | None) -> None:
        if order is None:
            return
        if isinstance(order, Combine):
            left_out = sorted(set(self._round.hosts) - set(order.hosts))
            if left_out:
                why = f"round {order.number}: some hosts lack the contribution of its workers, or its center is behind"
                self._roster.story.add("courier", left_out, "", "left out", why)
        self._order(self._round.hosts, order)

    def _order(self, hosts: Iterable[int], order: Order) -> None:
        for host in hosts:
            if host in self._members:
                self._send(self._members[host], order)
            else:
                self._here.handle_order(order)

    def _center_dropped(self) -> None:
        """End the exchanges between centers: the workers have released their parameters."""
        self._at, self._changed, self._source, self._apart = {}, False, 0, {}
        self._made, self._source_due_at = set(), math.inf
        for member in self._members.values():
            member.has_courier = False
        self._order(range(self._world.hosts), Dropped())

    def mark_lost(self, host: int) -> None:
        self._at.pop(host, None)
        self._apart = {hosts: each for hosts, each in self._apart.items() if host not in hosts}
        self._order(range(self._world.hosts), Lost(host))
        self._order_round(self._round.mark_lost(host))

    def flush(self) -> None:
        """Send all couriers the addresses and numbers of workers if these have changed."""
        if self._at and self._roster.changes != self._changes:
            self._changes = self._roster.changes
            workers = {host: self._roster.num_live_on(host) for host in range(self._world.hosts)}
            self._changed |= workers != self._workers
            self._workers = workers
        if not self._changed:
            return
        self._changed = False
        self._order(range(self._world.hosts), Peers(dict(self._at), dict(self._workers), self._source))

    def end(self) -> None:
        self._here.close()


class RoundTable:
    """The latest round: the hosts that take part, and the contributions that each has received."""

    def __init__(self) -> None:
        self._gather: Gather | None = None
        self._waiting: set[int] = set()
        self._has: dict[int, dict[int, int]] = {}
        self._idle: list[int] = []
        self._decided = False
        self._latest = 0  # The latest decided round.
        # Hosts that took part in it and are not lost: they have its center.
        self._took_part: set[int] = set()
        self._source: int | None = None  # The idle host with the center that the round begins from.

    @property
    def hosts(self) -> list[int]:
        return [] if self._gather is None else self._gather.hosts

    def begin(self, number: int, hosts: Mapping[int, int], idle: Iterable[int]) -> Gather:
        """Begin a round of these hosts; ``idle`` hosts have a center and no worker in the round."""
        self._gather = Gather(number, sorted(hosts), [hosts[host] for host in sorted(hosts)])
        self._waiting, self._has, self._idle = set(self._gather.hosts), {}, sorted(idle)
        self._decided, self._source = False, None
        return self._gather

    def gathered(self, host: int, news: Gathered) -> Combine | None:
        """Record what a host has; return the decision if there is one."""
        if self._gather is None or news.number != self._gather.number or host not in self._waiting:
            return None
        self._waiting.discard(host)
        self._has[host] = news.bases
        return self._decide()

    def mark_lost(self, host: int) -> Combine | None:
        """Continue without a host; return the decision if it was the last missing one."""
        self._idle = [each for each in self._idle if each != host]
        self._took_part.discard(host)
        # No host can get the center from there any more.
        if self._decided and self._source == host:
            return self._choose()
        # Contributions that it has sent to all others count. Its center does not.
        had = self._has.pop(host, None)
        if self._gather is None or (host not in self._waiting and had is None) or self._decided:
            return None
        self._waiting.discard(host)
        return self._decide()

    def _decide(self) -> Combine | None:
        """Return the decision if no remaining host is still waited for."""
        gather = self._gather
        if self._waiting or gather is None or not self._has:
            return None
        decision = self._choose()
        self._decided, self._latest, self._took_part = True, gather.number, set(self._has)
        return decision

    def _choose(self) -> Combine:
        """Choose the contributions that all remaining hosts have, without old centers."""
        # All may be behind: no remaining host took part in the round before, or has got its center
        # since. Then they get it now.
        gather: Any = self._gather
        everywhere = set.intersection(*(set(bases) for bases in self._has.values()))
        bases = {host: base for each in self._has.values() for host, base in each.items()}
        # Choose among the remaining hosts: the center of a lost host may be unreachable.
        latest = max(bases[host] for host in self._has)
        have = [] if self._decided else self._took_part.intersection(self._idle)
        self._source = min(have, default=None) if self._latest > latest else None
        if self._source is not None:
            return Combine(gather.number, [], self._latest, self._source, self._idle)
        ahead = [host for host in self._has if bases[host] == latest]
        counted = sorted(host for host in everywhere if bases[host] == latest)
        return Combine(gather.number, counted, latest, min(ahead), self._idle)
