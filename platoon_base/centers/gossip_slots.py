"""Ownership of slots: workers join and leave, and slots of ended workers are reused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from platoon_base.centers.gossip_memory import TABLE_LOCK, GossipShape, Slot, count_slots, slots_on
from platoon_base.centers.host_memory import FREE
from platoon_base.centers.stripes import Stripe, copy_all, cut, wait_until
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.shm.segments import Name, Segment
from platoon_base.timeouts import timeout

__all__ = ["LEAVING", "Slots"]

LEAVING = -4  # Owner of a slot while its worker passes on the weight.
_JOIN_TIMEOUT_S = 30.0


class Slots:
    """All slots, for one worker or the controller; a worker holds a file lock on its slot."""

    def __init__(
        self, name: Name, segment: Segment, shape: GossipShape, rank: int, gone: Callable[[int], bool]
    ) -> None:
        self.own: Slot | None = None
        self._name, self._shape, self._rank, self._gone = name, shape, rank, gone
        self._segments = [segment]
        self._mapped: list[Slot] = []

    def every(self) -> list[Slot]:
        """Return all slots; map those that have been added."""
        self._require_open()
        count = slots_on(self._segments[0])
        if count > len(self._mapped):
            if len(self._segments[-1].buffer) < self._shape.size_bytes(count):
                try:
                    self._segments.append(Segment.attach(self._name))
                except ConfigurationError:  # The name was removed: use the known slots.
                    return self._mapped
            self._mapped += [self._map(index) for index in range(len(self._mapped), count)]
        return self._mapped

    def others(self) -> list[Slot]:
        """Return the slots of the other live workers, by rank."""
        found = [slot for slot in self.every() if slot is not self.own and self._lives(slot)]
        return sorted(found, key=lambda slot: slot.owner)

    def counted(self) -> list[Slot]:
        """Return the slots in the consensus: live ones, or after the training all with weight."""
        slots = self.every()
        return (
            [slot for slot in slots if self._lives(slot)]
            or [slot for slot in slots if slot.owner >= 0 and slot.weight]
            or slots
        )

    def require_own(self) -> Slot:
        """Return the slot of this worker; raise `ConfigurationError` after `close`."""
        self._require_open()
        if self.own is None:
            raise ConfigurationError("only a worker has a slot: others read the consensus")
        return self.own

    def join(self) -> None:
        """Acquire a prepared slot and its weight, or a slot with half of a worker's weight."""
        with self._table(_JOIN_TIMEOUT_S) as taken:
            if not taken:
                raise CollectiveTimeoutError(
                    f"waited {_JOIN_TIMEOUT_S:g} s for another worker that joins: is it stopped (SIGSTOP)? End it"
                )
            slots = self.every()
            if not any(map(self._lives, slots)):  # The last workers that leave keep their weight.
                wait_until(lambda: not any(map(self._leaves, slots)), timeout("stripe"))
            living = [slot for slot in slots if self._lives(slot) and slot.owner != self._rank]
            prepared = [slot for slot in slots if slot.owner == FREE and slot.weight]
            earlier = [slot for slot in slots if slot.owner == self._rank]
            donor = max(living, key=_weight, default=None)
            if donor is None or (prepared and not earlier):
                # If no worker lives, continue from the slot with the largest weight.
                left = [slot for slot in slots if not self._leaves(slot)] or slots
                index, donor = max(prepared or [*earlier, *left], key=_weight).index, None
            else:
                unused = earlier or [slot for slot in slots if not (self._lives(slot) or self._leaves(slot))]
                index = unused[0].index if unused else self._add()
            own = self._mapped[index] = self.own = self._map(index, own=True)
            # A lock that a dead owner's forked child still holds serves as well.
            own.claim()
            if donor is not None:
                self._take_half(donor, own)
            own.owner = self._rank

    def leave(self, timeout_s: float) -> None:
        """Free the slot, whose weight another worker has received."""
        own = self.require_own()
        with self._table(timeout_s) as taken:
            if taken:  # On a timeout the slot counts as that of an ended worker.
                own.unclaim()
                own.owner = FREE

    def close(self) -> None:
        segments, self._segments, self._mapped, self.own = self._segments, [], [], None
        for segment in segments:
            segment.close()

    @property
    def closed(self) -> bool:
        return not self._segments

    def _require_open(self) -> None:
        if self.closed:
            raise ConfigurationError("this worker's slot is closed: nothing can be done after close()")

    def _map(self, index: int, own: bool = False) -> Slot:
        return Slot(self._segments[-1], self._shape, index, self._rank, self._gone, own)

    def _lives(self, slot: Slot) -> bool:
        return slot is self.own or (slot.owner >= 0 and slot.claimed and not self._gone(slot.owner))

    @staticmethod
    def _leaves(slot: Slot) -> bool:
        return slot.owner == LEAVING and slot.claimed

    @contextlib.contextmanager
    def _table(self, timeout_s: float) -> Iterator[bool]:
        """Lock the table of owners within the ``with`` block; yield False on a timeout."""
        segment = self._segments[0]
        taken = wait_until(lambda: segment.try_lock(TABLE_LOCK), timeout_s)
        try:
            yield taken
        finally:
            if taken:
                segment.unlock(TABLE_LOCK)

    def _add(self) -> int:
        """Extend the memory by a slot; other workers map it on demand."""
        index = len(self._mapped)
        self._segments[0].grow(self._shape.size_bytes(index + 1))
        self._segments.append(Segment.attach(self._name))
        self._shape.clear(self._segments[-1], index)
        self._mapped.append(self._map(index))
        count_slots(self._segments[0], index + 1)
        return index

    def _take_half(self, donor: Slot, own: Slot) -> None:
        """Move half of a worker's weight, with a copy of its values, which preserves the mean."""
        values, weights = self._shape.layout.empty(), [0] * self._shape.stripes

        def split(stripe: Stripe) -> None:
            weight, received = int(donor.weights[stripe.index]), int(donor.received[stripe.index])
            taken = weights[stripe.index] = weight // 2
            donor.weights[stripe.index] = weight - taken
            donor.received[stripe.index] = received - (received * taken // weight if weight else 0)
            copy_all(cut(values, stripe.pieces), stripe.center)

        def put(stripe: Stripe) -> None:
            copy_all(stripe.center, cut(values, stripe.pieces))
            own.weights[stripe.index], own.received[stripe.index] = weights[stripe.index], 0

        # Locked stripes contribute values without weight.
        for stripe in donor.locks.visit(split, True, timeout("stripe"), {}):
            copy_all(cut(values, stripe.pieces), stripe.center)
        for stripe in own.locks.visit(put, True, timeout("stripe"), {}):
            put(stripe)


def _weight(slot: Slot) -> int:
    return slot.weight
