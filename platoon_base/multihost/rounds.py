"""Rounds of workers on several hosts: host 0 decides which contributions count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from platoon_base.courier.messages import Combine, Gather, Gathered


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
