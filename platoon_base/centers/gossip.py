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
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.gossip_memory import GossipShape, Slot, shares_of
from platoon_base.centers.gossip_slots import LEAVING, Slots
from platoon_base.centers.host_kernels import Plan
from platoon_base.centers.host_memory import CONTROLLER
from platoon_base.centers.stripes import STRIPE_BYTES, Stripe, copy_all, cut
from platoon_base.dtypes import sum_dtype
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, LayoutMismatchError
from platoon_base.layout import Layout
from platoon_base.rules.center import Adopt, gossips
from platoon_base.rules.easgd import EASGD
from platoon_base.rules.gosgd import GoSGD
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.awake import awake
from platoon_base.timeouts import timeout

__all__ = ["GossipCenter", "GossipCenters"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

_ADOPT: Any = Adopt(EASGD())  # c := x
_STRIPES = 16  # Maximum number of stripes of a slot.
_PUSH_PATIENCE_S = 0.2  # Maximum wait for a stalled receiver's lock.


class GossipCenter:
    """A worker's handle of all slots, including its own; the controller has no slot of its own."""

    on_device = False
    states: ClassVar[list[list[Array]]] = []

    def __init__(
        self,
        name: Name,
        segment: Segment,
        shape: GossipShape,
        rank: int,
        rule: GoSGD | None = None,
        gone: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.slots = Slots(name, segment, shape, rank, gone)
        self._shape, self._rank = shape, rank
        self._pid = os.getpid()
        self._one_thread = threading.Lock()
        self.under_way = [0] * shape.stripes  # Weight sent but not delivered, by stripe.
        self.whole = True
        # Stripes left out by the last `sync`, with their numbers of visits then.
        self._left_out: dict[int, int] = {}
        self._plans: list[Plan] = []  # Plans of the own stripes, without states.
        self._random = None if rule is None else np.random.default_rng((rule.seed, rank))

    def sync(self, rule: Any, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Merge received values into ``arrays``, and send to another worker if drawn."""
        # Locks are held even if ``locked`` is False: a weight belongs to its values.
        own = self.slots.require_own()
        target = self._draw(rule) if gossips(rule) else None
        refusals: list[NonFiniteElement] = []

        def publish(stripe: Stripe) -> None:
            refused = self._publish(own, rule, stripe, cut(arrays, stripe.pieces), target is not None)
            if refused is not None:
                piece = stripe.pieces[refused[0]]
                refusals.append(NonFiniteElement(piece.parameter, piece.start + refused[1]))

        left = own.locks.visit(publish, True, min(timeout_s, timeout("stripe")), self._left_out)
        if left and timeout_s <= timeout("stripe"):
            raise CollectiveTimeoutError(own.locks.timeout_text(left, timeout_s))
        self.whole = not left
        left_out = {stripe.index: int(stripe.holder["visits"]) for stripe in left}
        if left_out.keys() - self._left_out.keys():
            log.warning(
                "rank %d leaves out locked stripes: %s", self._rank, own.locks.timeout_text(left, timeout("stripe"))
            )
        self._left_out = left_out
        if target is not None:
            self._deliver(target, arrays)
        return min(refusals, default=None)

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

        target.locks.visit(merge, True, _PUSH_PATIENCE_S, {})

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

        left = own.locks.visit(take, True, min(timeout_s, timeout("stripe")), {})
        if left:
            raise CollectiveTimeoutError(own.locks.timeout_text(left, timeout_s))

    def _mean(self, out: Sequence[Array], timeout_s: float) -> None:
        """Copy the consensus, even of locked stripes."""
        slots = self.slots.counted()
        totals = [0] * self._shape.stripes
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

            for stripe in slot.locks.visit(add, True, min(timeout_s, timeout("stripe")), {}):
                add(stripe)
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
                    if not slot.locks.lock_all(deadline):
                        taken = [stripe for stripe in slot.stripes if stripe.holder["rank"] != self._rank]
                        raise CollectiveTimeoutError(slot.locks.timeout_text(taken, timeout_s))
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
            out = self._shape.layout.empty()
            self._mean(out, timeout("stripe"))
            return out, []

    def finish(self) -> None:
        """Do nothing: no calls are queued."""

    def settle(self) -> None:
        """Do nothing: the controller reads the same memory."""

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

        own.locks.visit(empty, True, _PUSH_PATIENCE_S, {})
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


class GossipCenters:
    """Opens the slots of a job under its name; ``workers`` slots are prepared, others added."""

    location = "host"

    def __init__(
        self,
        name: Name,
        workers: int = 1,
        gone: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.name = name
        self._workers, self._gone = workers, gone

    def create(self, layout: Layout, rule: Any, rank: int) -> GossipCenter:
        """Create the segment with a slot for each worker; replace one left by a dead creator."""
        shape = GossipShape(max(STRIPE_BYTES, -(-layout.nbytes // _STRIPES)), layout)
        segment = Segment.create(self.name, shape.size_bytes(self._workers))
        shape.write_header(segment, self._workers)
        return self._joined(GossipCenter(self.name, segment, shape, rank, rule, self._gone))

    def attach(self, layout: Layout, rule: Any, rank: int) -> GossipCenter:
        """Open the segment and join; raise `LayoutMismatchError` if it does not fit the layout."""
        segment = Segment.attach(self.name)
        shape = GossipShape.of(segment, layout)
        if shape is None:
            segment.close()
            raise LayoutMismatchError(
                f"the parameters in {self.name} are those of another model or of another version of this package; "
                "run the same script and the same installation on every worker"
            )
        return self._joined(GossipCenter(self.name, segment, shape, rank, rule, self._gone))

    def watch(self, layout: Layout) -> GossipCenter | None:
        """Open the segment for the controller; None if it contains a center."""
        segment = Segment.attach(self.name, populate=False)
        shape = GossipShape.of(segment, layout)
        if shape is not None:
            return GossipCenter(self.name, segment, shape, CONTROLLER)
        segment.close()
        return None

    def _joined(self, center: GossipCenter) -> GossipCenter:
        try:
            center.join()
        except BaseException:
            center.close(over=True)
            raise
        return center

    def unlink(self) -> None:
        Segment.unlink(self.name)
