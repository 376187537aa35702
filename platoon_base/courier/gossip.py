"""The courier's part of gossip over several hosts: it sends workers' messages and merges others.

A message stays in its queue until the other courier has acknowledged it; over a new link it is
resent. The receiver marks each stripe as merged before it merges it, and marks and slots outlive a
courier, so a message counts once. If a courier is killed, only the stripe that it merges may be
lost. A message for a host that is lost or has no workers is merged into a worker of the sender.
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

# Time to wait for the lock of a stalled worker; then another worker gets the rest.
_PATIENCE_S = 0.2


class GossipCourier:
    """The messages of one host; workers are drawn by numbers of live ``workers``."""

    def __init__(self, host: int, means: GossipMeans, workers: Mapping[int, int]) -> None:
        self._host, self._slots, self._memory, self._workers = host, means.slots, means.memory, workers
        means.is_quiet = self.is_quiet
        # The link and the number of the message that it carried, by host.
        self._sent: dict[int, tuple[Conversation, int]] = {}
        self._returning: set[int] = set()  # Hosts whose message goes to a worker of this host.
        self._gather: between.Gather | None = None
        self._was_quiet = 0  # All messages of this host from before this round were acknowledged.
        # The link and the round that it was notified of, by host.
        self._told: dict[int, tuple[Conversation, int]] = {}
        # By host, the latest round before which all its messages were acknowledged.
        self._quiet: dict[int, int] = {}
        self._lost: set[int] = set()
        self._stamped = 0
        self.merged = 0

    def handle_gather(self, order: between.Gather) -> None:
        self._gather = order

    def is_quiet(self, number: int) -> bool:
        """Return whether all messages of participating hosts from before a round are merged."""
        gather = self._gather
        if gather is None or gather.number != number or self._was_quiet < number:
            return False
        others = set(gather.hosts) - {self._host} - self._lost
        return all(self._quiet.get(host, 0) >= number for host in others)

    def step(
        self, conversations: Mapping[int, Conversation], lost: set[int], round_under_way: bool, stamped: int
    ) -> None:
        """Send, merge and acknowledge without blocking; see `Overwriting.stamped`."""
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
            # Messages after the last acknowledgement are from workers that have the mean already.
            if link is not None and not (round_under_way and self._has_met(host)):
                self._receive(host, link)

    def _has_met(self, host: int) -> bool:
        return self._gather is not None and self._quiet.get(host, 0) >= self._gather.number

    def _take_words(self, host: int, conversation: Conversation) -> None:
        words = conversation.gossip
        self._quiet[host] = max(self._quiet.get(host, 0), words.quiet)
        road = self._memory.roads[host]
        if road.full and host not in self._returning:
            # Read the number after the flag: before that, a worker may replace the message.
            number = road.message.number
            if words.merged == number:
                road.clear()
            elif words.returned == number:
                self._returning.add(host)

    def _become_quiet(self, conversations: Mapping[int, Conversation]) -> None:
        """Report to the other hosts of a round that all messages of this host are acknowledged."""
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
        """Send the message of a queue, or merge it into a worker of this host."""
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
        """Merge a message into a worker of this host; False to try again later."""
        message = road.message

        def mark(index: int) -> None:
            message.weights[index] = 0

        living = self._living(message.index)
        if not self._distribute(message, lambda index: int(message.weights[index]), mark, living or self._left()):
            return False
        road.clear()
        return True

    def _receive(self, host: int, conversation: Conversation) -> None:
        """Merge and acknowledge the received message, or return it if no worker is live here."""
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
        """Return the slots of live workers, first the drawn one."""
        living = self._slots.others()
        first = index % len(living) if living else 0
        return living[first:] + living[:first]

    def _left(self) -> list[Slot]:
        return [slot for slot in self._slots.counted() if slot.owner >= 0]

    def _distribute(
        self, message: Message, pending: Callable[[int], int], mark: Callable[[int], None], takers: Sequence[Slot]
    ) -> bool:
        """Merge pending stripes into slots with free locks; return whether all are done."""
        overwrites = self._memory.overwrites
        stripes = range(len(message.weights))
        for slot in takers:
            owner = slot.owner

            def merge(stripe: Stripe, slot: Slot = slot, owner: int = owner) -> None:
                weight = pending(stripe.index)
                if not weight or slot.owner != owner:  # A worker that leaves receives nothing more.
                    return
                mark(stripe.index)
                # The values were overwritten. This is read under the lock: a worker that overwrites
                # slots holds all locks.
                if message.stamp < overwrites.stamp or overwrites.written != self._stamped:
                    slot.add(stripe.index, weight, received=slot.is_overwritten(stripe.index))
                else:
                    slot.mix(stripe, cut(message.values, stripe.pieces), weight)
                    slot.add(stripe.index, weight)

            slot.locks.visit(merge, True, _PATIENCE_S, {})
            if not any(map(pending, stripes)):
                return True
        return not any(map(pending, stripes))
