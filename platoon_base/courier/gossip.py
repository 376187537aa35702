"""The courier's part of gossip over several hosts: it sends what workers leave for other hosts, and merges what comes.

A message stays on its road until the other courier has acknowledged it; over a new link it is sent again. The receiver
marks each stripe as merged before it merges it, and marks and slots outlive a courier, so a message counts once. Only
the stripe in which a courier is killed may be lost, like that of a worker which is killed.

A message whose host is lost, or has no worker by then, is merged into a worker of the host that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from platoon_base.centers.gossip_hosts import Message, Road
from platoon_base.centers.gossip_means import GossipMeans
from platoon_base.centers.gossip_memory import Slot
from platoon_base.centers.stripes import Stripe, cut
from platoon_base.courier import messages as between
from platoon_base.courier.conversation import NOT_FILLED, Conversation

__all__ = ["GossipCourier"]

_PATIENCE_S = 0.2  # with the lock of a stalled worker; then another one gets the rest


class GossipCourier:
    """The messages of one host.

    Parameters
    ----------
    host : int
        This one.
    means : GossipMeans
        Of this host.
    workers : mapping of int to int
        The number of live workers of each host, by which workers draw.

    Attributes
    ----------
    merged : int
        How many messages of other hosts were merged here.
    """

    def __init__(self, host: int, means: GossipMeans, workers: Mapping[int, int]) -> None:
        self._host, self._slots, self._memory, self._workers = host, means.slots, means.memory, workers
        means.is_quiet = self.is_quiet
        self._sent: dict[int, tuple[Conversation, int]] = {}  # by host, the link that carried which message
        self._returning: set[int] = set()  # hosts whose message goes to a worker of this host
        self._gather: between.Gather | None = None
        self._was_quiet = 0  # the latest round before which all messages of this host were acknowledged
        self._told: dict[int, tuple[Conversation, int]] = {}  # by host, the link that carried the word of which round
        self._quiet: dict[int, int] = {}  # by host, the latest round before which all its messages were acknowledged
        self._lost: set[int] = set()
        self._stamped = 0
        self.merged = 0

    def handle_gather(self, order: between.Gather) -> None:
        """Begin a round, in which all workers wait."""
        self._gather = order

    def is_quiet(self, number: int) -> bool:
        """Return whether every message from before a round is merged, of all hosts that take part."""
        gather = self._gather
        if gather is None or gather.number != number or self._was_quiet < number:
            return False
        others = set(gather.hosts) - {self._host} - self._lost
        return all(self._quiet.get(host, 0) >= number for host in others)

    def step(
        self, conversations: Mapping[int, Conversation], lost: set[int], round_under_way: bool, stamped: int
    ) -> None:
        """Send, merge and acknowledge without blocking; of links, those of ``conversations`` are open.

        ``stamped`` is the count of the latest overwrite on this host that has a stamp.
        """
        self._lost, self._stamped = lost, stamped
        for host, conversation in conversations.items():
            if conversation.inbox is None:
                conversation.inbox = self._memory.new_message()
            self._take_words(host, conversation)
        self._become_quiet(conversations)
        for host, road in self._memory.roads.items():
            link = conversations.get(host)
            filled = link is not None and link.stamp is not None and link.stamp > NOT_FILLED
            workers = self._workers.get(host, 0) if filled and host not in lost else 0
            if road.workers != workers:
                road.workers = workers
            self._forward(road, link if filled else None)
            # What comes after the word that all is acknowledged is of workers that have the mean already.
            if link is not None and not (round_under_way and self._has_met(host)):
                self._receive(host, link)

    def _has_met(self, host: int) -> bool:
        return self._gather is not None and self._quiet.get(host, 0) >= self._gather.number

    def _take_words(self, host: int, conversation: Conversation) -> None:
        words = conversation.gossip
        self._quiet[host] = max(self._quiet.get(host, 0), words.quiet)
        road = self._memory.roads[host]
        if road.full and host not in self._returning:
            number = road.message.number  # read behind the flag: until then a worker may leave the next message
            if words.merged == number:
                road.clear()
            elif words.returned == number:
                self._returning.add(host)

    def _become_quiet(self, conversations: Mapping[int, Conversation]) -> None:
        """Report to the others of a round that all messages of this host are acknowledged."""
        gather = self._gather
        if gather is None:
            return
        number = gather.number
        if self._was_quiet < number and not any(road.full for road in self._memory.roads.values()):
            self._was_quiet = number
        if self._was_quiet < number:
            return
        for host in gather.hosts:
            conversation = conversations.get(host)
            if conversation is not None and self._told.get(host) != (conversation, number):
                self._told[host] = conversation, number
                conversation.send_quiet(number)

    def _forward(self, road: Road, conversation: Conversation | None) -> None:
        """Send the message of a road, or give it to a worker of this host."""
        if not road.full:
            return
        host, message = road.host, road.message
        if host in self._lost:
            self._returning.add(host)
        if host in self._returning:
            if self._take_back(road):
                self._returning.discard(host)
        elif conversation is not None and self._sent.get(host) != (conversation, message.number):
            self._sent[host] = conversation, message.number
            conversation.post_message(message.buffer)

    def _take_back(self, road: Road) -> bool:
        """Merge a message into a worker of this host; False if that is to be tried again."""
        message = road.message

        def mark(index: int) -> None:
            message.weights[index] = 0

        living = self._living(message.index)
        if not self._distribute(message, lambda index: int(message.weights[index]), mark, living or self._left()):
            return False
        road.clear()
        return True

    def _receive(self, host: int, conversation: Conversation) -> None:
        """Merge the message that has come, and acknowledge it; or return it, if no worker lives here."""
        message = conversation.inbox
        if message is None or not conversation.has_message:
            return
        number = message.number
        numbers = self._memory.merged_of(host, message.life)

        def pending(index: int) -> int:
            return int(message.weights[index]) if numbers[index] < number else 0

        def mark(index: int) -> None:
            numbers[index] = number

        living = self._living(message.index)
        if not living and not (numbers == number).any():
            conversation.answer_message(number, is_merged=False)
        elif self._distribute(message, pending, mark, living or self._left()):
            self.merged += 1
            conversation.answer_message(number, is_merged=True)

    def _living(self, index: int) -> list[Slot]:
        """Return the slots of the workers that live here: first the one that was drawn, then the others."""
        living = self._slots.others()
        first = index % len(living) if living else 0
        return living[first:] + living[:first]

    def _left(self) -> list[Slot]:
        return [slot for slot in self._slots.counted() if slot.owner >= 0]

    def _distribute(
        self, message: Message, pending: Callable[[int], int], mark: Callable[[int], None], takers: Sequence[Slot]
    ) -> bool:
        """Merge the stripes that are pending into the first slot whose lock is free; return whether none is left."""
        overwrites = self._memory.overwrites
        stripes = range(len(message.weights))
        for slot in takers:
            owner = slot.owner

            def merge(stripe: Stripe, slot: Slot = slot, owner: int = owner) -> None:
                weight = pending(stripe.index)
                if not weight or slot.owner != owner:  # one that leaves takes nothing any more
                    return
                mark(stripe.index)
                # Its values were overwritten; by the lock, since a worker that overwrites slots holds those of all.
                if message.stamp < overwrites.stamp or overwrites.written != self._stamped:
                    slot.add(stripe.index, weight, received=slot.is_overwritten(stripe.index))
                else:
                    slot.mix(stripe, cut(message.values, stripe.pieces), weight)
                    slot.add(stripe.index, weight)

            slot.locks.visit(merge, True, _PATIENCE_S, {})
            if not any(map(pending, stripes)):
                return True
        return not any(map(pending, stripes))
