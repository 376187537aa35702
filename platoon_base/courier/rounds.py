"""The courier's part of a round of workers on several hosts: exchange contributions, and add them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from platoon_base.centers.round_totals import HostsRounds, RoundTotals
from platoon_base.courier import messages as between
from platoon_base.courier.exchange import TOTALS, Conversation

__all__ = ["HostsRound"]


class GivingCourier(Protocol):
    """What a round needs of the courier."""

    def give_center(self, conversation: Conversation) -> None:
        """Send this host's center."""
        ...


class HostsRound:
    """The latest round, as far as this host knows it.

    First all hosts exchange what their workers have contributed. When this one has all, it says so; when all hosts have
    said so, the first host of the job tells whose contributions count, so that all hosts add up the same.

    Parameters
    ----------
    host : int
        This one.
    rounds : HostsRounds
        Its center.
    courier : GivingCourier
    tell : callable
        Takes messages for the launcher.
    """

    def __init__(
        self, host: int, rounds: HostsRounds, courier: GivingCourier, tell: Callable[[between.News], None]
    ) -> None:
        self._host, self._rounds, self._courier, self._tell = host, rounds, courier, tell
        self._gather: between.Gather | None = None
        self._combine: between.Combine | None = None
        self._idle: list[int] = []
        self._own = rounds.new_totals()
        self._sent: dict[int, Conversation] = {}  # by host, the link by which it got this host's contributions
        self._told = self._given = False

    def obey(self, order: between.Gather | between.Combine) -> None:
        """Begin a round, or end it."""
        if isinstance(order, between.Gather):
            if any(conversation.sending for conversation in self._sent.values()):
                self._own = self._rounds.new_totals()  # the other memory is still to be sent
            self._own.number = 0
            self._gather, self._combine, self._sent, self._told, self._given = order, None, {}, False, False
        elif self._gather is not None and order.number == self._gather.number:
            self._combine = order

    def step(self, conversations: Mapping[int, Conversation], lost: set[int]) -> None:
        """Go on with the round as far as possible."""
        for conversation in conversations.values():
            if conversation.totals is None:
                conversation.totals = self._rounds.new_totals()
        gather = self._gather
        if gather is not None:
            if self._own.number != gather.number and not self._rounds.read(self._own, gather.number):
                return
            self._send(gather, conversations)
            if not self._told:
                self._tell_if_complete(gather, conversations, lost)
            if self._combine is not None and self._end(gather, self._combine, conversations):
                self._gather, self._idle = None, list(self._combine.idle)
        if self._idle and self._combine is not None and self._rounds.made >= self._combine.number:
            for host in self._idle:
                if self._combine.source == self._host and host in conversations:
                    self._courier.give_center(conversations[host])
            self._idle = []

    def _send(self, gather: between.Gather, conversations: Mapping[int, Conversation]) -> None:
        """Send this host's contributions by every link by which they did not go yet."""
        for host in gather.hosts:
            conversation = conversations.get(host)
            if conversation is not None and self._sent.get(host) is not conversation:
                self._sent[host] = conversation
                conversation.post(TOTALS, self._own.buffer)

    def _tell_if_complete(
        self, gather: between.Gather, conversations: Mapping[int, Conversation], lost: set[int]
    ) -> None:
        bases = {self._host: self._own.base}
        for host in gather.hosts:
            totals = self._totals_of(host, gather.number, conversations)
            if totals is not None:
                bases[host] = totals.base
            elif host not in lost:
                return
        self._told = True
        self._tell(between.Gathered(gather.number, bases))

    def _totals_of(self, host: int, number: int, conversations: Mapping[int, Conversation]) -> RoundTotals | None:
        if host == self._host:
            return self._own
        conversation = conversations.get(host)
        return None if conversation is None or conversation.round != number else conversation.totals

    def _end(self, gather: between.Gather, combine: between.Combine, conversations: Mapping[int, Conversation]) -> bool:
        """Let the workers make the step, once this host has what it takes; tells whether it has."""
        if combine.source == self._host and not self._given:
            self._given = True
            for host in combine.behind:  # before a worker here can make the step
                if host in conversations:
                    self._courier.give_center(conversations[host])
        elif self._host in combine.behind and self._rounds.made == self._own.base:
            return False  # the center of the others has yet to come
        found = [self._totals_of(host, gather.number, conversations) for host in combine.hosts]
        totals = [each for each in found if each is not None]
        return len(totals) == len(found) and self._rounds.gather(totals, gather.number)
