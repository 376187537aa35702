"""The event log of a job: the latest changes of ranks, hosts and couriers, with their reasons."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from platoon_base.system.text import legible

_SIZE, _LAST = 400, 12  # The number of kept entries, and of those in an error.
_WHY_CHARACTERS, _SHOWN_CHARACTERS = 200, 90


class Entry(msgspec.Struct, frozen=True, rename={"at": "when", "before": "from", "after": "to"}):
    """One change, at seconds since the epoch by the first host's clock.

    ``who`` is "rank", "host", "courier", "checkpoint" or "job"; ``numbers`` are the ranks or hosts
    that changed in the same way, one after the other.
    """

    at: float
    who: str
    numbers: list[int]
    before: str
    after: str
    why: str = ""

    @property
    def line(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at)) + f".{int(self.at % 1 * 1000):03d}"
        change = " -> ".join(filter(None, [self.before, self.after]))
        why = " ".join(self.why.split())
        return f"{when}  {self._named}: {change}{f' ({why})' if why else ''}"

    @property
    def _named(self) -> str:
        name = "courier of host" if self.who == "courier" else self.who
        listed = ", ".join(map(str, self.numbers))
        return f"{name}{'s' * (len(self.numbers) > 1)} {listed}".rstrip()

    def concerns(self, ranks: Collection[int], hosts: Collection[int]) -> bool:
        """Return whether this is about one of these ranks or hosts, or about the whole job."""
        about = {"rank": ranks, "host": hosts, "courier": hosts}.get(self.who)
        return about is None or not set(self.numbers).isdisjoint(about)


class Story:
    """The latest changes of a job; older ones are dropped. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: collections.deque[Entry] = collections.deque(maxlen=_SIZE)
        self._dropped = 0

    def add(self, who: str, numbers: Sequence[int], before: str, after: str, why: str = "") -> None:
        """Record a change; if only the number differs from the latest, extend that entry."""
        before, after, why = legible(before), legible(after), legible(why[:_WHY_CHARACTERS])
        last = self._kept[-1] if self._kept else None
        same = last is not None and (last.who, last.before, last.after, last.why) == (who, before, after, why)
        if last is not None and same and numbers and set(numbers).isdisjoint(last.numbers):
            self._kept[-1] = msgspec.structs.replace(last, numbers=sorted([*last.numbers, *numbers]))
            return
        self._dropped += len(self._kept) == _SIZE
        self._kept.append(Entry(self._clock(), who, list(numbers), before, after, why))

    @property
    def entries(self) -> list[Entry]:
        """The kept entries in order; the first one says how many were dropped, if any were."""
        kept = list(self._kept)
        if self._dropped:
            kept.insert(0, Entry(kept[0].at, "job", [], "", f"{self._dropped} earlier events were dropped"))
        return kept

    def tail(self, ranks: Collection[int], hosts: Collection[int] = ()) -> str:
        """Return lines for the end of an error: the latest changes of these ranks and hosts."""
        found = [entry for entry in self._kept if entry.concerns(ranks, hosts)][-_LAST:]
        if not found:
            return ""
        lines = "".join(f"\n  {_cut(entry.line)}" for entry in found)
        return f"\nWhat happened to them (`platoon jobs --story` shows all):{lines}"


def _cut(line: str) -> str:
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."
