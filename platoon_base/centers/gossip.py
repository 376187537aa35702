"""Gossip: each worker has a slot in its host's shared memory, into which others merge parameters.

There is no center: the consensus, the mean of all slots by weight, is validated and saved. A slot
holds the parameters of its worker's latest synchronization, merged with those received since.
Weights are integers in units of `WHOLE`, because halves then add up exactly. A sender first halves
its own slot's weight and then merges under the receiver's lock. It holds one lock at a time, which
excludes deadlocks. If a stalled worker holds that lock, the sender merges the undelivered part back
at its next synchronization.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from platoon_base.centers.base import Named, NonFiniteElement, OnHost
from platoon_base.centers.host_kernels import Plan
from platoon_base.centers.stripes import (
    CONTROLLER,
    FREE,
    HOLDER,
    STRIPE_BYTES,
    Stripe,
    StripeLocks,
    copy_all,
    cut,
    wait_until,
)
from platoon_base.dtypes import Array, sum_dtype
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules.center import Adopt, gossips
from platoon_base.rules.easgd import EASGD
from platoon_base.rules.gosgd import GoSGD
from platoon_base.shm.schema import PAGE, Growing, Part, Parts, Schema, Views
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

_ADOPT: Any = Adopt(EASGD())  # c := x
_PUSH_PATIENCE_S = 0.2  # Maximum wait for a stalled receiver's lock.


class GossipCenter(OnHost):
    """A worker's handle of all slots, including its own; the controller has no slot of its own."""

    states: ClassVar[list[list[Array]]] = []

    def __init__(
        self,
        memory: Views,
        layout: Layout,
        rank: int,
        rule: GoSGD | None = None,
        gone: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.slots = Slots(memory, layout, rank, gone)
        self._layout, self._rank = layout, rank
        self._pid = os.getpid()
        self._one_thread = threading.Lock()
        self.under_way = [0] * self.slots.stripes  # Weight sent but not delivered, by stripe.
        self.whole = True
        self._plans: list[Plan] = []  # Plans of the own stripes, without states.
        self._random = None if rule is None else np.random.default_rng((rule.seed, rank))

    def sync(self, rule: Any, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Merge received values into ``arrays``, and send to another worker if drawn."""
        # Locks are held even if ``locked`` is False: a weight belongs to its values.
        own = self.slots.require_own()
        target = self._draw(rule) if gossips(rule) else None

        def publish(stripe: Stripe) -> tuple[int, int] | None:
            return self._publish(own, rule, stripe, cut(arrays, stripe.pieces), target is not None)

        refused = own.locks.synchronize(publish, timeout_s)
        self.whole = not own.locks.left_out
        if target is not None:
            self._deliver(target, arrays)
        return refused

    def _publish(
        self, own: Slot, rule: Any, stripe: Stripe, pieces: Sequence[Array], sends: bool
    ) -> tuple[int, int] | None:
        """Merge a stripe of the own slot and of the parameters; with ``sends`` halve its weight."""
        index = stripe.index
        self._take_back(own, stripe)
        weight, received = int(own.weights[index]), int(own.received[index])
        if own.is_overwritten(index) and gossips(rule):
            copy_all(pieces, stripe.center)
            refused = None
        elif received and gossips(rule):
            merging = rule.with_part((weight - received) / weight)
            refused = stripe.apply(merging, merging, pieces)
        else:
            refused = self._plans[index].run(_ADOPT, pieces)
        own.received[index] = 0
        if sends:  # An interrupt in between loses weight but never adds any.
            weight = int(own.weights[index])
            own.weights[index] = weight - weight // 2
            self.under_way[index] = weight // 2
        return refused

    def _take_back(self, own: Slot, stripe: Stripe) -> None:
        """Merge the undelivered part back; only its weight if the own slot was overwritten."""
        index, sent = stripe.index, self.under_way[stripe.index]
        if sent and own.is_overwritten(index):
            self.under_way[index] = 0
            own.add(index, sent)
        elif sent:
            published = own.published if own.received[index] else own.values
            self._merge(own, stripe, cut(published, stripe.pieces), received=False)

    def _merge(self, slot: Slot, stripe: Stripe, pieces: Sequence[Array], received: bool = True) -> None:
        """Merge values, whose weight is in flight, into a stripe of a slot."""
        sent = self.under_way[stripe.index]
        slot.mix(stripe, pieces, sent, received)
        self.under_way[stripe.index] = 0
        slot.add(stripe.index, sent, received)

    def _draw(self, rule: GoSGD) -> Slot | None:
        """Draw whether to send, and the receiver."""
        random: Any = self._random
        if random.random() >= rule.probability:
            return None
        others = self.slots.others()
        return others[int(random.integers(len(others)))] if others else None

    def _deliver(self, target: Slot, arrays: Sequence[Array]) -> None:
        """Merge ``arrays``, with the weight in flight, into another worker's slot."""
        owner, own = target.owner, self.slots.require_own()

        def merge(stripe: Stripe) -> None:
            index = stripe.index
            sent = self.under_way[index]
            if not sent or not target.owner == owner >= 0:  # A worker that leaves receives nothing.
                return
            # Overwritten after these values were published, as the target was.
            if own.is_overwritten(index):
                self.under_way[index] = 0
                target.add(index, sent, received=target.is_overwritten(index))
            else:
                self._merge(target, stripe, cut(arrays, stripe.pieces))

        target.locks.visit(merge, _PUSH_PATIENCE_S)

    def read(
        self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False, averaged: bool = False
    ) -> None:
        """Copy the consensus, or with ``begin`` and without ``averaged`` this worker's slot."""
        # The consensus in ``out`` counts as a step of this worker, published at the next
        # synchronization.
        if not begin or averaged:
            self._mean(out, timeout_s)
            return
        own = self.slots.require_own()

        def take(stripe: Stripe) -> None:
            copy_all(cut(out, stripe.pieces), stripe.center)
            own.received[stripe.index] = 0

        own.locks.synchronize(take, min(timeout_s, timeout("stripe")), every=True)

    def _mean(self, out: Sequence[Array], timeout_s: float) -> None:
        """Copy the consensus, even of locked stripes."""
        slots = self.slots.counted()
        totals = [0] * len(self.under_way)
        sums = [array.astype(sum_dtype(array.dtype), copy=False) for array in out]
        for slot in slots:

            def add(stripe: Stripe, slot: Slot = slot) -> None:
                weight = int(slot.weights[stripe.index])
                totals[stripe.index] += weight
                for target, value in zip(cut(sums, stripe.pieces), stripe.center):
                    if weight and totals[stripe.index] == weight:
                        np.copyto(target, value)
                    elif weight:  # This mean of equal values is exactly that value.
                        target += target.dtype.type(weight / totals[stripe.index]) * (value - target)

            slot.locks.visit_every(add, min(timeout_s, timeout("stripe")))
        for stripe in slots[0].stripes:
            if not totals[stripe.index]:  # All weight was lost with dead workers.
                copy_all(cut(sums, stripe.pieces), stripe.center)
        for array, total in zip(out, sums):
            if array is not total:
                array[...] = total

    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Overwrite all slots; unpublished progress of workers is discarded."""
        self.slots.require_own()
        deadline = awake() + timeout_s
        with self._one_thread:
            slots = self.slots.every()
            # All slots are locked together: a message is merged before all overwrites or after all.
            try:
                for slot in slots:
                    slot.locks.require_all(deadline, timeout_s)
                for slot in slots:
                    for stripe in slot.stripes:
                        self._put_stripe(slot, stripe, values)
            finally:
                for slot in slots:
                    slot.locks.release_all()

    def _put_stripe(self, slot: Slot, stripe: Stripe, values: Sequence[Array]) -> None:
        copy_all(stripe.center, cut(values, stripe.pieces))
        # Other owners must not merge their own values.
        slot.received[stripe.index] = 0 if slot is self.slots.own else slot.weights[stripe.index]

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Write initial values and equal weights to all slots before others attach."""
        slots = self.slots.every()
        for slot, share in zip(slots, shares_of(len(slots))):
            copy_all(slot.values, values)
            slot.weights[...] = share

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]:
        with self._one_thread:  # File locks do not exclude threads of the same process.
            out = self._layout.empty()
            self._mean(out, timeout("stripe"))
            return out, []

    def close(self, over: bool = False) -> None:
        """Release the memory; idempotent. Unless ``over``, another worker receives the weight."""
        if not (self.slots.closed or over or self.slots.own is None) and os.getpid() == self._pid:
            with contextlib.suppress(ConfigurationError):  # Another thread may have closed it.
                self._hand_over(self.slots.own)
        self.slots.close()
        self._plans = []

    def _hand_over(self, own: Slot) -> None:
        """Send the whole weight to another worker, and free the slot for a new one."""
        if not self.slots.others():
            return
        own.owner = LEAVING  # Others no longer send to this slot.

        def empty(stripe: Stripe) -> None:
            self._take_back(own, stripe)
            weight = int(own.weights[stripe.index])
            own.weights[stripe.index] = own.received[stripe.index] = 0
            self.under_way[stripe.index] = weight

        own.locks.visit(empty, _PUSH_PATIENCE_S)
        for other in self.slots.others():
            self._deliver(other, own.values)
            if not any(self.under_way):
                break
        if any(self.under_way):  # No receiver was left: keep the weight.
            own.weights += np.array(self.under_way, np.uint64)
            own.owner = self._rank
            return
        self.slots.leave(_PUSH_PATIENCE_S)

    def join(self) -> None:
        self.slots.join()
        self._plans = [Plan(stripe.center) for stripe in self.slots.require_own().stripes]


class GossipCenters(Named):
    """Opens the slots of a job under its name; ``workers`` slots are prepared, others added."""

    def create(self, layout: Layout, rule: Any, rank: int) -> GossipCenter:
        """Create the segment with a slot for each worker; replace one left by a dead creator."""
        memory = create_slots(self.name, layout, self._workers)
        return self._joined(GossipCenter(memory, layout, rank, rule, self._gone))

    def attach(self, layout: Layout, rule: Any, rank: int) -> GossipCenter:
        """Open the segment and join; raise `LayoutMismatchError` if it does not fit the layout."""
        memory = GOSSIP.attach(self.name, layout)
        return self._joined(GossipCenter(memory, layout, rank, rule, self._gone))

    def watch(self, layout: Layout) -> GossipCenter:
        """Open the segment for the controller."""
        return GossipCenter(GOSSIP.attach(self.name, layout, populate=False), layout, CONTROLLER)

    def _joined(self, center: GossipCenter) -> GossipCenter:
        try:
            center.join()
        except BaseException:
            center.close(over=True)
            raise
        return center


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
        # The owner's lock shows that it lives.
        self.segment, self.owner_byte, self._owner = segment, views.at["owner"], views.owner
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

    @property
    def claimed(self) -> bool:
        """Whether another handle holds the owner's lock."""
        return self.segment.locked(self.owner_byte)

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
            own.segment.try_lock(own.owner_byte)
            if donor is not None:
                self._take_half(donor, own)
            own.owner = self._rank

    def leave(self, timeout_s: float) -> None:
        """Free the slot after another worker has received its weight."""
        own = self.require_own()
        with self._opened.locked(timeout_s) as taken:
            if taken:  # On a timeout the slot counts as that of an ended worker.
                own.segment.unlock(own.owner_byte)
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
