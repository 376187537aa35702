"""The courier's part of an overwrite: it sends an overwritten center to all other hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from platoon_base.centers.across_hosts import Overwrites
from platoon_base.courier.conversation import NOT_FILLED, Conversation


class Overwriting:
    """Sends this host's center to hosts with an older one; until then the worker waits."""

    def __init__(self, host: int, overwrites: Overwrites, give_center: Callable[[Conversation], None]) -> None:
        self._host, self._overwrites, self._give_center = host, overwrites, give_center
        self._stamped = overwrites.spread  # The latest overwrite with a stamp.
        # By host, the stamp of the center that was sent last.
        self._given: dict[int, tuple[Conversation, int]] = {}

    def step(self, conversations: Mapping[int, Conversation], known: set[int]) -> None:
        """Advance the overwrite without blocking; ``known`` are the hosts with couriers."""
        written = self._overwrites.written
        if written != self._stamped:
            self._stamped = written
            latest = max([self._overwrites.stamp, *(each.stamp or 0 for each in conversations.values())])
            self._overwrites.stamp = Overwrites.later(latest, self._host)
            for conversation in conversations.values():
                conversation.send_stamp(self._overwrites.stamp)
        stamp = self._overwrites.stamp
        stamps = {host: each.stamp for host, each in conversations.items()}
        # A host without values gets those of the source first, and is found here later if they are
        # older.
        older = {host for host, theirs in stamps.items() if theirs is not None and NOT_FILLED < theirs < stamp}
        for host, conversation in ((host, conversations[host]) for host in older):
            if self._given.get(host) != (conversation, stamp) and not conversation.sending:
                self._given[host] = conversation, stamp
                self._give_center(conversation)
        # A host that has just received values may not have reported it. When it knows this stamp,
        # it has.
        all_know = all(host in conversations and conversations[host].knows >= stamp for host in known)
        if written != self._overwrites.spread and all_know and not older:
            self._overwrites.spread = written
