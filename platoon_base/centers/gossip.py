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

from platoon_base.centers.across_hosts import AcrossHosts
from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.gossip_means import GossipMeans
from platoon_base.centers.gossip_memory import GossipShape, Slot, shares_of
from platoon_base.centers.gossip_roads import Outgoing, Roads
from platoon_base.centers.gossip_slots import LEAVING, Slots
from platoon_base.centers.host_kernels import Plan
from platoon_base.centers.host_memory import CONTROLLER, no_header
from platoon_base.centers.overwrites import Overwrites
from platoon_base.centers.stripes import PATIENCE_S, STRIPE_BYTES, Stripe, copy_all, cut
from platoon_base.compression.codecs import NONE
from platoon_base.dtypes import sum_dtype
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, LayoutMismatchError
from platoon_base.hosts.world import ONE_HOST, World
from platoon_base.layout import Layout
from platoon_base.rules.center import Adopt, gossips
from platoon_base.rules.easgd import EASGD
from platoon_base.rules.gosgd import GoSGD
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.awake import awake

__all__ = ["GossipCenter", "GossipCenters"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

_ADOPT: Any = Adopt(EASGD())  # c := x
_STRIPES = 16  # Maximum number of stripes of a slot.
# Other hosts have at least this time to receive an overwrite.
_MIN_S = 1.0
_PUSH_PATIENCE_S = 0.2  # Maximum wait for a stalled receiver's lock.


class GossipCenter:
    """A worker's handle of all slots, including its own; the controller has no slot of its own."""

    on_device = has_hosts_rounds = False
    states: ClassVar[list[list[Array]]] = []

    def __init__(
        self,
        name: Name,
        segment: Segment,
        shape: GossipShape,
        rank: int,
        rule: GoSGD | None = None,
        gone: Callable[[int], bool] = lambda rank: False,
        world: World = ONE_HOST,
    ) -> None:
        self._world = world
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
        self.hosts = shape.hosts_memory(segment)
        self.overwrites = Overwrites(no_header()) if self.hosts is None else self.hosts.overwrites
        self.across_hosts: AcrossHosts | None = None
        self._roads: Roads | None = None
        if self.hosts is not None:
            pieces = shape.layout.stripes(shape.stripe_bytes)
            self.across_hosts = GossipMeans(shape.layout, pieces, self.slots, self.hosts, self._own_mean, self._put_all)
            self._roads = Roads(self.hosts, rank)

    def sync(self, rule: Any, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Merge received values into ``arrays``, and send to another worker if drawn."""
        # Locks are held even if ``locked`` is False: a weight belongs to its values.
        own = self.slots.require_own()
        if self.hosts is not None:
            self.hosts.agreed = False
        try:
            target = self._draw(rule) if gossips(rule) else None
            return self._sync(own, rule, arrays, target, timeout_s)
        finally:
            if self._roads is not None:
                self._roads.release()

    def _sync(
        self, own: Slot, rule: Any, arrays: Sequence[Array], target: Slot | Outgoing | None, timeout_s: float
    ) -> NonFiniteElement | None:
        refusals: list[NonFiniteElement] = []

        def publish(stripe: Stripe) -> None:
            refused = self._publish(own, rule, stripe, cut(arrays, stripe.pieces), target is not None)
            if refused is not None:
                piece = stripe.pieces[refused[0]]
                refusals.append(NonFiniteElement(piece.parameter, piece.start + refused[1]))

        left = own.locks.visit(publish, True, min(timeout_s, PATIENCE_S), self._left_out)
        if left and timeout_s <= PATIENCE_S:
            raise CollectiveTimeoutError(own.locks.timeout_text(left, timeout_s))
        self.whole = not left
        left_out = {stripe.index: int(stripe.holder["visits"]) for stripe in left}
        if left_out.keys() - self._left_out.keys():
            log.warning("rank %d leaves out locked stripes: %s", self._rank, own.locks.timeout_text(left, PATIENCE_S))
        self._left_out = left_out
        if isinstance(target, Outgoing):
            self._leave_to_courier(target, arrays)
        elif isinstance(target, Slot):
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

    def _draw(self, rule: GoSGD) -> Slot | Outgoing | None:
        """Draw whether to send, and the receiver among the workers of all hosts."""
        random: Any = self._random
        if random.random() >= rule.probability:
            return None
        others = self.slots.others()
        away = 0 if self._roads is None else self._roads.count()
        if not others and not away:
            return None
        drawn = int(random.integers(len(others) + away))
        if drawn < len(others):
            return others[drawn]
        return None if self._roads is None else self._roads.claim(drawn - len(others))

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
            self._consensus(out, timeout_s)
            return
        own = self.slots.require_own()

        def take(stripe: Stripe) -> None:
            copy_all(cut(out, stripe.pieces), stripe.center)
            own.received[stripe.index] = 0

        left = own.locks.visit(take, True, min(timeout_s, PATIENCE_S), {})
        if left:
            raise CollectiveTimeoutError(own.locks.timeout_text(left, timeout_s))

    def _consensus(self, out: Sequence[Array], timeout_s: float) -> None:
        """Copy the mean of all hosts while it is current, else the mean of this host's slots."""
        if self.hosts is not None and self.hosts.agreed:
            copy_all(out, self.hosts.mean)
        else:
            self._mean(out, timeout_s)

    def _own_mean(self, out: list[Array]) -> list[int]:
        with self._one_thread:
            return self._mean(out, PATIENCE_S)

    def _mean(self, out: Sequence[Array], timeout_s: float) -> list[int]:
        """Copy the weighted mean of the slots, even of locked stripes; return the weights."""
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

            for stripe in slot.locks.visit(add, True, min(timeout_s, PATIENCE_S), {}):
                add(stripe)
        for stripe in slots[0].stripes:
            if not totals[stripe.index]:  # All weight was lost with dead workers.
                copy_all(cut(sums, stripe.pieces), stripe.center)
        for array, total in zip(out, sums):
            if array is not total:
                array[...] = total
        return totals

    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Overwrite all slots, on all hosts; unpublished progress of workers is discarded."""
        self.slots.require_own()
        deadline, count = awake() + timeout_s, 0
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
                if self.hosts is not None:
                    self.hosts.agreed = False
                    count = self.overwrites.note()
            finally:
                for slot in slots:
                    slot.locks.release_all()
        if self.hosts is not None:
            self.overwrites.await_all_hosts(count, max(deadline - awake(), _MIN_S))

    def _put_all(self, values: Sequence[Array]) -> bool:
        with self._one_thread:
            return self._put(values, PATIENCE_S) is None

    def _put(self, values: Sequence[Array], timeout_s: float) -> CollectiveTimeoutError | None:
        """Overwrite all slots; return the error if a stripe stayed locked."""
        for slot in self.slots.every():

            def put(stripe: Stripe, slot: Slot = slot) -> None:
                self._put_stripe(slot, stripe, values)

            left = slot.locks.visit(put, True, timeout_s, {})
            if left:
                return CollectiveTimeoutError(slot.locks.timeout_text(left, timeout_s))
        return None

    def _put_stripe(self, slot: Slot, stripe: Stripe, values: Sequence[Array]) -> None:
        copy_all(stripe.center, cut(values, stripe.pieces))
        # Other owners must not merge their own values.
        slot.received[stripe.index] = 0 if slot is self.slots.own else slot.weights[stripe.index]

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite all slots with another host's consensus; False if a stripe stayed locked."""
        if self.across_hosts is None:
            raise ConfigurationError("these slots are those of a job on one host: there is no other to replace them")
        return self.across_hosts.replace(values, states, number)

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Write initial values and equal weights to all slots before others attach."""
        slots = self.slots.every()
        world = self._world
        shares = shares_of(world.size)[world.ranks_here.start :] if world.several else shares_of(len(slots))
        for slot, share in zip(slots, shares):
            copy_all(slot.values, values)
            slot.weights[...] = share

    def snapshot(
        self, may_wait: bool = True, publish: Callable[[int, int], object] | None = None
    ) -> tuple[list[Array], list[list[Array]]]:
        with self._one_thread:  # File locks do not exclude threads of the same process.
            out = self._shape.layout.empty()
            self._consensus(out, PATIENCE_S)
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
        self.hosts = self.across_hosts = self._roads = None
        self.overwrites = Overwrites(no_header())

    def _hand_over(self, own: Slot) -> None:
        """Send the whole weight to another worker, and free the slot for a new one."""
        if not self.slots.others():
            self._send_half(own)
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

    def _send_half(self, own: Slot) -> None:
        roads = self._roads
        if roads is None or not roads.count():
            return
        away = roads.claim_any()
        if away is None:
            log.warning(
                "rank %d leaves as the last worker of its host while an earlier message to each other host is under "
                "way: what it has learned since then stays with its weight on this host, for a worker that is started "
                "here. Lower GoSGD's probability if the link is too slow",
                self._rank,
            )
            return

        def halve(stripe: Stripe) -> None:
            self._take_back(own, stripe)
            weight = int(own.weights[stripe.index])
            own.weights[stripe.index] = weight - weight // 2
            own.received[stripe.index] = 0
            self.under_way[stripe.index] = weight // 2

        try:
            own.locks.visit(halve, True, _PUSH_PATIENCE_S, {})
            self._leave_to_courier(away, own.values)
        finally:
            roads.release()

    def _leave_to_courier(self, outgoing: Outgoing, arrays: Sequence[Array]) -> None:
        """Queue ``arrays``, with the weight in flight, for the courier."""
        if self.hosts is not None:
            outgoing.write(self.hosts.life, self.under_way, arrays)
            self.under_way = [0] * self._shape.stripes  # An interrupt may only lose weight.
            outgoing.road.post()

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
        world: World = ONE_HOST,
    ) -> None:
        self.name = name
        self._workers, self._world = workers, world
        self._gone = gone

    def create(self, layout: Layout, rule: Any, rank: int) -> GossipCenter:
        """Create the segment with a slot for each worker; replace one left by a dead creator."""
        world = self._world
        if world.several and world.compression != NONE and not world.host:
            log.warning(
                "--hosts-compression %s does not apply to %r: its messages between hosts have whole parameters",
                world.compression,
                rule,
            )
        shape = GossipShape(max(STRIPE_BYTES, -(-layout.nbytes // _STRIPES)), layout, self._world.hosts)
        segment = Segment.create(self.name, shape.size_bytes(self._workers))
        shape.write_header(segment, self._workers, self._world)
        return self._joined(GossipCenter(self.name, segment, shape, rank, rule, self._gone, self._world))

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
        return self._joined(GossipCenter(self.name, segment, shape, rank, rule, self._gone, self._world))

    def watch(self, layout: Layout, by: int = CONTROLLER) -> GossipCenter | None:
        """Open the segment for the controller or the courier; None if it contains a center."""
        segment = Segment.attach(self.name, populate=False)
        shape = GossipShape.of(segment, layout)
        if shape is not None:
            return GossipCenter(self.name, segment, shape, by)
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
