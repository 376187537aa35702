"""Shared memory of workers that gossip: a slot per worker. Workers join and leave; slots are reused."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_kernels import Plan
from platoon_base.centers.stripes import (
    FREE,
    HOLDER,
    STRIPE_BYTES,
    Stripe,
    StripeLocks,
    copy_all,
    cut,
    wait_until,
)
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules.easgd import EASGD
from platoon_base.shm.schema import PAGE, Growing, Part, Parts, Schema, Views
from platoon_base.shm.segments import Name, Segment
from platoon_base.timeouts import timeout

Array = np.ndarray[Any, Any]

WHOLE = 1 << 60  # Sum of all weights; as integers, halves add up exactly.
LEAVING = -4  # Owner of a slot whose worker is leaving and transfers its weight.
_JOIN_TIMEOUT_S = 30.0
_STRIPES = 16  # Maximum number of stripes of a slot.


def shares_of(workers: int) -> list[int]:
    """Return equal weights for the first workers of a job, which add up to `WHOLE`."""
    share, rest = divmod(WHOLE, workers)
    return [share + (i < rest) for i in range(workers)]


def _stripe_bytes(layout: Layout) -> int:
    return max(STRIPE_BYTES, -(-layout.nbytes // _STRIPES))


def _slot(layout: Layout) -> Parts:
    stripes = (len(layout.stripes(_stripe_bytes(layout))),)
    return Parts(
        Part("owner", "i4"),  # Its first byte is the owner's lock.
        Part("holders", HOLDER, stripes),
        Part("weights", "u8", stripes),
        Part("received", "u8", stripes),
        Part("values", layout, (), PAGE),
        Part("published", layout),
    )


GOSSIP = Schema(
    "the memory of workers that gossip",
    b"PLTNGSSP",
    4,
    [("slots", "u4")],
    lambda header, layout: [Part("slots", _slot(layout), (0,), PAGE)],
)


def create_slots(name: Name, layout: Layout, slots: int) -> Views:
    """Create the segment with free slots; replace one left by a dead creator."""
    slot = _slot(layout)
    memory = GOSSIP.create(name, layout, more=slots * slot.nbytes, slots=slots)
    for index in range(slots):
        _clear(Growing(memory, slot).views(index))
    return memory


def _clear(slot: Views) -> None:
    slot.owner[...] = slot.holders["rank"] = FREE


class Slot:
    """A worker's part of the memory: its published parameters, merged with those received since."""

    def __init__(
        self,
        segment: Segment,
        views: Views,
        layout: Layout,
        index: int,
        rank: int,
        gone: Callable[[int], bool],
        own: bool = False,
    ) -> None:
        self.index = index
        self._segment = segment
        self._owner_byte, self._owner = views.at["owner"], views.owner
        # Each stripe has a weight and gossips separately: a dead worker loses whole stripes.
        # ``received`` is the part of the weight received since the owner's last synchronization.
        self.weights: Array = views.weights
        self.received: Array = views.received
        # ``values`` is c of `GoSGD`. ``published`` is its x_old; the first merge writes it.
        self.values: list[Array] = views.values
        self.published: list[Array] = views.published
        own_states = [self.published] if own else []
        self.stripes = [
            Stripe(i, p, self.values, [], own_states, views.holders[i], len(layout), len(layout))
            for i, p in enumerate(layout.stripes(_stripe_bytes(layout)))
        ]
        self.locks = StripeLocks(segment, self.stripes, rank, gone, views.at["holders"])

    @property
    def owner(self) -> int:
        """Rank of the worker that owns the slot; negative if there is none."""
        return int(self._owner)

    @owner.setter
    def owner(self, rank: int) -> None:
        self._owner[...] = rank

    def mix(self, stripe: Stripe, pieces: Sequence[Array], weight: int, received: bool = True) -> None:
        """Merge values into a stripe; `add` must follow and adds their weight."""
        index = stripe.index
        if received and not self.received[index]:
            copy_all(cut(self.published, stripe.pieces), stripe.center)
        # c := c + ratio (x - c); the change of x is discarded.
        ratio = weight / (int(self.weights[index]) + weight)
        Plan(stripe.center).run(EASGD(ratio), [piece.copy() for piece in pieces])

    def add(self, index: int, weight: int, received: bool = True) -> None:
        """Add to the weight of a stripe, and to its received part."""
        self.weights[index] += np.uint64(weight)
        if received:
            self.received[index] += np.uint64(weight)

    def is_overwritten(self, index: int) -> bool:
        """Return whether a stripe was overwritten since the owner's last synchronization."""
        return bool(self.received[index] and self.received[index] == self.weights[index])

    def claim(self) -> bool:
        """Acquire the lock that shows that the owner lives; False if another process holds it."""
        return self._segment.try_lock(self._owner_byte)

    def unclaim(self) -> None:
        self._segment.unlock(self._owner_byte)

    @property
    def claimed(self) -> bool:
        """Whether another handle holds the owner's lock."""
        return self._segment.locked(self._owner_byte)

    @property
    def weight(self) -> int:
        return sum(map(int, self.weights))


class Slots:
    """All slots, for one worker or the controller; a worker holds a file lock on its slot."""

    def __init__(self, memory: Views, layout: Layout, rank: int, gone: Callable[[int], bool]) -> None:
        self.own: Slot | None = None
        self._layout, self._rank, self._gone = layout, rank, gone
        self._all: Growing | None = Growing(memory, _slot(layout))
        self.stripes = len(layout.stripes(_stripe_bytes(layout)))
        self._mapped: list[Slot] = []

    def every(self) -> list[Slot]:
        """Return all slots; map those that have been added."""
        count = len(self._opened)
        # If the name was removed, use the known slots.
        with contextlib.suppress(ConfigurationError):
            self._mapped += [self._map(index) for index in range(len(self._mapped), count)]
        return self._mapped

    def others(self) -> list[Slot]:
        """Return the slots of the other live workers, by rank."""
        found = [slot for slot in self.every() if slot is not self.own and self._lives(slot)]
        return sorted(found, key=lambda slot: slot.owner)

    def counted(self) -> list[Slot]:
        """Return the slots of the consensus: live ones, or after training those with a weight."""
        slots = self.every()
        return (
            [slot for slot in slots if self._lives(slot)]
            or [slot for slot in slots if slot.owner >= 0 and slot.weight]
            or slots
        )

    def require_own(self) -> Slot:
        """Return the slot of this worker; raise `ConfigurationError` after `close`."""
        if len(self._opened) and self.own is not None:
            return self.own
        raise ConfigurationError("only a worker has a slot: others read the consensus")

    def join(self) -> None:
        """Acquire a prepared slot and its weight, or a slot with half of a worker's weight."""
        with self._opened.locked(_JOIN_TIMEOUT_S) as taken:
            if not taken:
                raise CollectiveTimeoutError(
                    f"waited {_JOIN_TIMEOUT_S:g} s for another worker that is joining: is it stopped (SIGSTOP)? End it"
                )
            slots = self.every()
            # The last workers to leave keep their weight: wait until they have left.
            if not any(map(self._lives, slots)):
                wait_until(lambda: not any(map(self._leaves, slots)), timeout("stripe"))
            living = [slot for slot in slots if self._lives(slot) and slot.owner != self._rank]
            prepared = [slot for slot in slots if slot.owner == FREE and slot.weight]
            earlier = [slot for slot in slots if slot.owner == self._rank]
            donor = max(living, key=operator.attrgetter("weight"), default=None)
            if donor is None or (prepared and not earlier):
                # If no worker lives, continue from the slot with the largest weight.
                left = [slot for slot in slots if not self._leaves(slot)] or slots
                index, donor = max(prepared or [*earlier, *left], key=operator.attrgetter("weight")).index, None
            else:
                unused = earlier or [slot for slot in slots if not (self._lives(slot) or self._leaves(slot))]
                index = unused[0].index if unused else self._add()
            own = self._mapped[index] = self.own = self._map(index, own=True)
            # If a forked child of a dead owner still holds the lock, that lock is enough.
            own.claim()
            if donor is not None:
                self._take_half(donor, own)
            own.owner = self._rank

    def leave(self, timeout_s: float) -> None:
        """Free the slot after another worker has received its weight."""
        own = self.require_own()
        with self._opened.locked(timeout_s) as taken:
            if taken:  # On a timeout the slot counts as that of an ended worker.
                own.unclaim()
                own.owner = FREE

    def close(self) -> None:
        all_of_them, self._all, self._mapped, self.own = self._all, None, [], None
        if all_of_them is not None:
            all_of_them.close()

    @property
    def closed(self) -> bool:
        return self._all is None

    @property
    def _opened(self) -> Growing:
        if self._all is None:
            raise ConfigurationError("this worker's slot is closed: it cannot be used after close()")
        return self._all

    def _map(self, index: int, own: bool = False) -> Slot:
        views = self._opened.views(index)
        return Slot(self._opened.segments[-1], views, self._layout, index, self._rank, self._gone, own)

    def _lives(self, slot: Slot) -> bool:
        return slot is self.own or (slot.owner >= 0 and slot.claimed and not self._gone(slot.owner))

    @staticmethod
    def _leaves(slot: Slot) -> bool:
        return slot.owner == LEAVING and slot.claimed

    def _add(self) -> int:
        """Extend the memory by a slot; other workers map it on demand."""
        self._opened.add(_clear)
        self._mapped.append(self._map(len(self._mapped)))
        return len(self._mapped) - 1

    def _take_half(self, donor: Slot, own: Slot) -> None:
        """Move half of a worker's weight and copy its values; the mean does not change."""
        values, weights = self._layout.empty(), [0] * len(own.stripes)

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
        for stripe in donor.locks.visit(split):
            copy_all(cut(values, stripe.pieces), stripe.center)
        own.locks.visit_every(put)
