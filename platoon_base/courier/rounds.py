"""The courier's part of rounds and overwrites on several hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from platoon_base.centers.across_hosts import AcrossHosts, Overwrites, RoundTotals
from platoon_base.compression.codecs import Codec
from platoon_base.compression.packing import Residuals
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import NOT_FILLED, TOTALS, Conversation
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout


class HostsRound:
    """The latest round, as this host knows it.

    First all hosts exchange their workers' contributions, and each reports when it has all of them.
    Then host 0 decides which contributions count, so all hosts add up the same. A host that cannot
    add them up requests another host's center: its own may be behind, or its courier was restarted
    and lacks the contributions of a lost host.
    """

    def __init__(
        self,
        host: int,
        rounds: AcrossHosts,
        give_center: Callable[[Conversation], None],
        report: Callable[[between.News], None],
        overwrites: Overwrites,
        codec: Codec | None = None,
        residuals: Residuals | None = None,
    ) -> None:
        self._host, self._rounds, self._give_center, self._report = host, rounds, give_center, report
        self._overwrites, self._codec, self._residuals = overwrites, codec, residuals
        self._spare: list[RoundTotals] = []
        self._gather: between.Gather | None = None
        self._combine: between.Combine | None = None
        self._own = self._new_totals()
        # Contributions by host; kept until the next round even if the host is lost.
        self._theirs: dict[int, RoundTotals] = {}
        # For each host, the link that carried this host's contributions.
        self._sent: dict[int, Conversation] = {}
        # The round whose center is missing here, and the links that were asked for it.
        self._missing = 0
        self._asked: list[Conversation] = []
        self._asked_at = 0.0  # A time of `awake`.
        # For each idle host, the link that carried the round's center.
        self._given: dict[int, Conversation] = {}
        self._reported = self._ended = False

    @property
    def under_way(self) -> bool:
        return self._gather is not None and not self._ended

    def handle_order(self, order: between.Gather | between.Combine) -> None:
        if isinstance(order, between.Gather):
            self._settle(order)
            if any(conversation.sending for conversation in self._sent.values()):
                self._own = self._new_totals()  # The other memory is still to be sent.
            self._own.number = 0
            self._spare += self._theirs.values()
            self._theirs, self._sent, self._missing, self._given = {}, {}, 0, {}
            self._gather, self._combine, self._reported, self._ended = order, None, False, False
        elif self._gather is not None and order.number == self._gather.number:
            self._combine = order

    def _settle(self, following: between.Gather) -> None:
        """Restore the state before the latest round if it ends without this host."""
        if self._gather is None or self._gather.number == following.number:
            return
        if self._combine is None or self._host not in self._combine.hosts:
            self._has_not_counted(self._gather.number)

    def _new_totals(self) -> RoundTotals:
        return self._spare.pop() if self._spare else self._rounds.new_totals(self._codec)

    def _has_not_counted(self, number: int) -> None:
        """Restore the residuals before round ``number``, which continued without this host."""
        if self._residuals is not None:
            self._residuals.undo(number)

    def step(self, conversations: Mapping[int, Conversation], lost: set[int]) -> None:
        """Advance the round without blocking; then send the center to hosts without it."""
        if self._rounds.wanted > self._rounds.made and not self.under_way:
            self._ask(self._rounds.wanted, conversations)
        gather, combine = self._gather, self._combine
        if gather is None:
            return
        for conversation in conversations.values():
            if conversation.totals_buffer is None:
                conversation.totals_buffer = self._new_totals()
        for host, conversation in conversations.items():
            totals = conversation.take_totals(gather.number)
            if isinstance(totals, RoundTotals):
                totals.unpack()
                self._theirs[host] = totals
        if self._has_own(gather.number):
            self._send(gather, conversations)
            if not self._reported:
                self._report_if_complete(gather, lost)
        if combine is not None and not self._ended:
            self._ended = self._end(gather, combine, conversations)
        if combine is not None and self._ended and self._host not in combine.hosts:
            self._has_not_counted(combine.number)
        if combine is not None and self._ended and self._rounds.made >= combine.number:
            self._give(combine, conversations)

    def _has_own(self, number: int) -> bool:
        """Copy this host's contributions once; False if an earlier courier has ended the round."""
        if self._own.number == number:
            return True
        if self._rounds.made >= number or not self._rounds.read(self._own, number):
            return False
        # The round ended meanwhile, so the copy may belong to the next one.
        if self._rounds.made >= number:
            self._own.number = 0
            return False
        if self._residuals is not None:
            self._own.pack(self._residuals, self._overwrites.version)
        return True

    def _send(self, gather: between.Gather, conversations: Mapping[int, Conversation]) -> None:
        for host in gather.hosts:
            conversation = conversations.get(host)
            if conversation is not None and self._sent.get(host) is not conversation:
                self._sent[host] = conversation
                conversation.post(TOTALS, self._own.buffer)

    def _report_if_complete(self, gather: between.Gather, lost: set[int]) -> None:
        found = {**self._theirs, self._host: self._own}
        if all(host in found or host in lost for host in gather.hosts):
            self._reported = True
            self._report(between.Gathered(gather.number, {host: found[host].base for host in sorted(found)}))

    def _end(self, gather: between.Gather, combine: between.Combine, conversations: Mapping[int, Conversation]) -> bool:
        """Let the workers make the outer step; return whether this host has all contributions."""
        if self._rounds.are_gathered(combine.number):
            return True
        own = {self._host: self._own} if self._own.number == combine.number else {}
        totals = [{**self._theirs, **own}.get(host) for host in combine.hosts]
        found = [each for each in totals if each is not None]
        if len(found) < len(totals):
            self._ask(combine.number, conversations, [combine.source, *combine.hosts])
            return False
        if self._rounds.made < combine.base:
            self._ask(combine.base, conversations, [combine.source, *combine.hosts])
            return False
        workers = dict(zip(gather.hosts, gather.workers))
        return self._rounds.gather(found, combine.number, [workers[host] for host in combine.hosts])

    def _ask(self, number: int, conversations: Mapping[int, Conversation], first: Sequence[int] = ()) -> None:
        """Request a center of this round or later, from one host after another."""
        if self._missing != number:
            self._missing, self._asked = number, []
        latest = self._asked[-1] if self._asked else None
        waits_until = 0.0 if latest is None else max(self._asked_at, latest.moved_at) + timeout("fetch")
        if latest in conversations.values() and awake() < waits_until:
            return
        for host in [*first, *conversations]:
            conversation = conversations.get(host)
            if conversation is not None and conversation not in self._asked:
                conversation.ask(number)
                self._asked.append(conversation)
                self._asked_at = awake()
                return

    def _give(self, combine: between.Combine, conversations: Mapping[int, Conversation]) -> None:
        """Send the center of the round to hosts with a center and no workers in the round."""
        if combine.source != self._host:
            return
        for host in combine.idle:
            conversation = conversations.get(host)
            # A host without a version has not reported whether it has a center.
            if conversation is None or conversation.version is None or self._given.get(host) is conversation:
                continue
            self._given[host] = conversation
            if conversation.version != NOT_FILLED:
                self._give_center(conversation)


class Overwriting:
    """Sends this host's center to hosts with an older one; until then the worker waits."""

    def __init__(self, host: int, overwrites: Overwrites, give_center: Callable[[Conversation], None]) -> None:
        self._host, self._overwrites, self._give_center = host, overwrites, give_center
        self._latest_spread = overwrites.spread  # The latest overwrite with a version.
        # For each host, the version of the center that was sent last.
        self._given: dict[int, tuple[Conversation, int]] = {}

    def step(self, conversations: Mapping[int, Conversation], known: set[int]) -> None:
        """Advance the overwrite without blocking; ``known`` are the hosts with couriers."""
        written = self._overwrites.written
        if written != self._latest_spread:
            self._latest_spread = written
            latest = max([self._overwrites.version, *(each.version or 0 for each in conversations.values())])
            self._overwrites.version = Overwrites.later(latest, self._host)
            for conversation in conversations.values():
                conversation.send_version(self._overwrites.version)
        version = self._overwrites.version
        versions = {host: each.version for host, each in conversations.items()}
        # A host without values gets those of the source first, and is found here later if they are
        # older.
        older = {host for host, theirs in versions.items() if theirs is not None and NOT_FILLED < theirs < version}
        for host, conversation in ((host, conversations[host]) for host in older):
            if self._given.get(host) != (conversation, version) and not conversation.sending:
                self._given[host] = conversation, version
                self._give_center(conversation)
        # A host that has just received values may not have reported it. When it knows this version,
        # it has.
        all_know = all(host in conversations and conversations[host].knows >= version for host in known)
        if written != self._overwrites.spread and all_know and not older:
            self._overwrites.spread = written
