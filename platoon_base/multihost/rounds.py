"""Rounds of workers on several hosts, for the launcher of the first one: whose contributions count is decided once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from platoon_base.courier.messages import Combine, Gather, Gathered

__all__ = ["RoundTable"]


class RoundTable:
    """The latest round: which hosts take part, and what each of them has.

    Attributes
    ----------
    hosts : list of int
        Those that take part.
    """

    def __init__(self) -> None:
        self._gather: Gather | None = None
        self._waiting: set[int] = set()
        self._has: dict[int, dict[int, int]] = {}
        self._idle: list[int] = []
        self._decided = False

    @property
    def hosts(self) -> list[int]:
        """See above."""
        return [] if self._gather is None else self._gather.hosts

    def begin(self, number: int, hosts: Mapping[int, int], idle: Iterable[int]) -> Gather:
        """Begin a round of so many workers on some hosts; ``idle`` are those that have a center and no worker in it."""
        self._gather = Gather(number, sorted(hosts), [hosts[host] for host in sorted(hosts)])
        self._waiting, self._has, self._idle = set(self._gather.hosts), {}, sorted(idle)
        self._decided = False
        return self._gather

    def gathered(self, host: int, news: Gathered) -> Combine | None:
        """Record what a host has; returns the decision once there is one."""
        if self._gather is None or news.number != self._gather.number or host not in self._waiting:
            return None
        self._waiting.discard(host)
        self._has[host] = news.bases
        return self._decide()

    def lose(self, host: int) -> Combine | None:
        """Go on without a host; returns the decision if it was the last that was waited for."""
        self._idle = [each for each in self._idle if each != host]
        had = self._has.pop(host, None)  # what it has sent to all others counts, where its center is does not
        if self._gather is None or (host not in self._waiting and had is None) or self._decided:
            return None
        self._waiting.discard(host)
        return self._decide()

    def _decide(self) -> Combine | None:
        """Return whose contributions all hosts have that take part still; those of a host that is behind are no use."""
        gather = self._gather
        if self._waiting or gather is None or not self._has:
            return None
        everywhere = set.intersection(*(set(bases) for bases in self._has.values()))
        bases = {host: base for each in self._has.values() for host, base in each.items()}
        self._decided = True
        # Who is left has its center; the values of a host that was lost meanwhile may not be had any more.
        latest = max(bases[host] for host in self._has)
        ahead = [host for host in self._has if bases[host] == latest]
        counted = sorted(host for host in everywhere if bases[host] == latest)
        return Combine(gather.number, counted, latest, min(ahead), self._idle)
