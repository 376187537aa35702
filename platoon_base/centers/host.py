"""Center in posix shared memory, cut into stripes with a lock each; see `host_memory`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.across_hosts import AcrossHosts
from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.host_memory import (
    CONTROLLER,
    COURIER,
    Shape,
    free_holders,
    header_on,
    holders_on,
    no_header,
)
from platoon_base.centers.host_rounds import Rounds, open_rounds
from platoon_base.centers.host_shift import Shift, wide
from platoon_base.centers.hosts_means import HostsMeans
from platoon_base.centers.overwrites import Overwrites
from platoon_base.centers.round_totals import HostsRounds
from platoon_base.centers.stripe_locks import StripeLocks
from platoon_base.centers.stripes import STRIPE_BYTES, Stripe, copy_all, cut
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, LayoutMismatchError
from platoon_base.layout import Layout
from platoon_base.rules.center import Rule, average_of, end_momentum, local_sources, momenta, rule_of_moments
from platoon_base.rules.outer import OuterRule, waits
from platoon_base.shm.segments import Name, Segment
from platoon_base.system.awake import awake
from platoon_base.timeouts import timeout

__all__ = ["COURIER", "STRIPE_BYTES", "HostCenter", "HostCenters"]

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

STRIPES_EACH = 4  # Stripes per worker, if there are several.


class HostCenter:
    """Center on one host; stripes with a stalled holder are left out until they are released."""

    on_device = False

    def __init__(
        self,
        segment: Segment,
        layout: Layout,
        rule: Rule | None,
        shape: Shape,
        rank: int,
        gone: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self._segment = segment
        self._layout = layout
        self._rank = rank
        pieces = layout.stripes(shape.stripe_bytes)
        self._holders = holders_on(segment, len(pieces))
        self._several_hosts = shape.several_hosts
        header = header_on(segment)
        self.overwrites = Overwrites(header)
        first, step = shape.buffers_start(layout), layout.nbytes
        self.values = center = layout.views(segment.buffer, first)
        self.states = [layout.views(segment.buffer, first + step * (i + 1)) for i in range(shape.states)]
        self._local_sources = sources = [] if rule is None else local_sources(rule)
        self._momenta = [] if rule is None else [self.states[i] for i in momenta(rule)]
        self._average = None if shape.average < 0 else shape.average
        self._local_states = [layout.views(np.zeros(layout.nbytes, dtype=np.uint8)) for _ in sources]
        splits = rule is None or rule_of_moments(rule) is not rule
        trained = layout.num_trained if splits else len(layout)
        self._stripes = [
            Stripe(i, p, center, self.states, self._local_states, self._holders[i], trained, layout.num_trained)
            for i, p in enumerate(pieces)
        ]
        self._locks = StripeLocks(segment, self._stripes, rank, gone)
        behind = first + step * (1 + shape.states)
        self._rounds: Rounds | None = None
        if shape.rounds:
            self._rounds = open_rounds(segment.buffer, behind, layout, self._stripes, self.states)
        remembering = [state for state, source in zip(self._local_states, sources) if source is None]
        self._shift = Shift(layout, wide(layout).views(segment.buffer, behind), remembering) if shape.shift else None
        self.across_hosts: AcrossHosts | None = None
        if shape.shift:
            self.across_hosts = HostsMeans(
                layout, header, self.copy_parameters, self.move_to, self._put_all, self._average
            )
        elif self._rounds is not None and shape.several_hosts:
            self.across_hosts = HostsRounds(
                layout, self._stripes, self._rounds, self._holders, lambda work, wait_s: self._visit(work, True, wait_s)
            )
        self.whole = True
        self._one_thread = threading.Lock()
        # Stripes left out by the last `sync`, with their numbers of visits then.
        self._left_out: dict[int, int] = {}

    def sync(self, rule: Rule, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once to each stripe, except those locked for long."""
        refusals: list[NonFiniteElement] = []
        flat, of_moments = [array.reshape(-1) for array in arrays], rule_of_moments(rule)

        def update(stripe: Stripe) -> None:
            pieces = [flat[p.parameter][p.start : p.stop] for p in stripe.pieces]
            if self._shift is not None:
                self._shift.follow(stripe, pieces)
            refused = stripe.apply(rule, of_moments, pieces)
            if self._rounds is not None:
                self._rounds.note_changed(stripe.index)
            if refused is not None:
                piece = stripe.pieces[refused[0]]
                refusals.append(NonFiniteElement(piece.parameter, piece.start + refused[1]))

        left = self._visit(update, locked, min(timeout_s, timeout("stripe")), self._left_out)
        if left and timeout_s <= timeout("stripe"):
            raise CollectiveTimeoutError(self._locks.timeout_text(left, timeout_s))
        left_out = {stripe.index: int(stripe.holder["visits"]) for stripe in left}
        self.whole = not left_out
        if left_out.keys() - self._left_out.keys():
            log.warning(
                "rank %d leaves out locked stripes: %s", self._rank, self._locks.timeout_text(left, timeout("stripe"))
            )
        self._left_out = left_out
        return min(refusals, default=None)

    def contribute(self, arrays: Sequence[Array], part: float, timeout_s: float) -> NonFiniteElement | None:
        """Add this worker's progress to stripes that have not changed since it copied them."""

        def add(rounds: Rounds, stripe: Stripe) -> tuple[int, int] | None:
            return rounds.contribute(stripe.index, cut(arrays, stripe.pieces), part)

        return self._visit_round(add, timeout_s)

    def note_met(self, number: int, timeout_s: float) -> None:
        """Close round ``number`` to contributions; its step is made later."""

        def note(rounds: Rounds, stripe: Stripe) -> None:
            rounds.note_met(stripe.index, number)

        self._visit_round(note, timeout_s)

    def take_over(
        self, rule: OuterRule, arrays: Sequence[Array], number: int, timeout_s: float
    ) -> NonFiniteElement | None:
        """Set ``arrays`` to the center after a round, and make the outer step where needed."""

        def take(rounds: Rounds, stripe: Stripe) -> tuple[int, int] | None:
            return rounds.take_over(stripe.index, rule, cut(arrays, stripe.pieces), number)

        if self.across_hosts is not None:
            self._require_open()
            began = awake()
            self.across_hosts.wait(number, timeout_s)
            timeout_s = max(timeout_s - (awake() - began), timeout("stripe"))
        return self._visit_round(take, timeout_s)

    def _visit_round(
        self, work: Callable[[Rounds, Stripe], tuple[int, int] | None], timeout_s: float
    ) -> NonFiniteElement | None:
        """Do a step of a round on each stripe; wait for locked ones, since a round needs all."""
        rounds, refusals = self._rounds, []
        if rounds is None:
            raise ConfigurationError("this center has no rounds: it was made for a rule that does not wait")

        def visit(stripe: Stripe) -> None:
            refused = work(rounds, stripe)
            if refused is not None:
                piece = stripe.pieces[refused[0]]
                refusals.append(NonFiniteElement(piece.parameter, piece.start + refused[1]))

        left = self._visit(visit, True, timeout_s)
        if left:
            raise CollectiveTimeoutError(self._locks.timeout_text(left, timeout_s))
        return min(refusals, default=None)

    def read(
        self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False, averaged: bool = False
    ) -> None:
        """Copy the center into ``out``; stripes locked for long are read anyway."""
        source = self.averages or self.values if averaged else self.values

        def copy(stripe: Stripe) -> None:
            if self._rounds is not None:
                self._rounds.note_read(stripe.index)
            values = cut(source, stripe.pieces)
            copy_all(cut(out, stripe.pieces), values)
            if begin:
                self._start(stripe, values)

        left = self._visit(copy, locked, min(timeout_s, timeout("stripe")), self._left_out)
        if left and timeout_s <= timeout("stripe"):
            raise CollectiveTimeoutError(self._locks.timeout_text(left, timeout_s))
        for stripe in left:
            copy(stripe)
        if begin and self._rounds is not None:
            self._rounds.begin()

    @property
    def averages(self) -> list[Array]:
        """Average of the parameters' center, and the moments' center; [] without an average."""
        if self._average is None:
            return []
        trained = self._layout.num_trained
        return [*self.states[self._average][:trained], *self.values[trained:]]

    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Overwrite the center; on several hosts, return once all of them have the values."""

        def copy(stripe: Stripe) -> None:
            new = cut(values, stripe.pieces)
            for c, value, *momentum in zip(stripe.center, new, *(cut(state, stripe.pieces) for state in self._momenta)):
                end_momentum(momentum, c, value)
            self._put(stripe, new)

        if self._several_hosts:
            self._overwrite(copy, timeout_s)
            return
        left = self._visit(copy, locked, timeout_s)
        if left:
            raise CollectiveTimeoutError(self._locks.timeout_text(left, timeout_s))

    def _overwrite(self, work: Callable[[Stripe], None], timeout_s: float) -> None:
        """Do ``work`` with all stripes locked, and wait until the other hosts have the center."""
        self._require_open()
        deadline = awake() + timeout_s
        with self._one_thread:
            try:
                if not self._locks.lock_all(deadline):
                    taken = [stripe for stripe in self._stripes if stripe.holder["rank"] != self._rank]
                    raise CollectiveTimeoutError(self._locks.timeout_text(taken, timeout_s))
                for stripe in self._stripes:
                    work(stripe)
                count = self.overwrites.note()
            finally:
                self._locks.release_all()
        self.overwrites.await_all_hosts(count, max(deadline - awake(), timeout("stripe")))

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's; False if a stripe stayed locked."""
        if self.across_hosts is None:
            raise ConfigurationError("this center is that of a job on one host: there is no other to replace it")
        return self.across_hosts.replace(values, states, number)

    def _put_all(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> bool:
        """Write values and the rule's states into the center; False if a stripe stayed locked."""

        def put(stripe: Stripe) -> None:
            self._put(stripe, cut(values, stripe.pieces))
            for state, given in zip(self.states, states):  # Last: `_put` also sets an average.
                copy_all(cut(state, stripe.pieces), cut(given, stripe.pieces))

        return not self._visit(put, True)

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Fill a new center before others attach."""
        for stripe in self._stripes:
            self._put(stripe, cut(values, stripe.pieces))
        for state, given in zip(self.states, states):  # Last: `_put` also sets an average.
            copy_all(state, given)
        for stripe in self._stripes:
            self._start(stripe)

    def _put(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Write values into a stripe, and reset this worker's states to them."""
        if self._rounds is not None:
            self._rounds.write(stripe.index, values)
        else:
            copy_all(stripe.center, values)
        if self._average is not None:
            copy_all(cut(self.states[self._average], stripe.with_states), values)
        self._start(stripe)

    def _start(self, stripe: Stripe, values: Sequence[Array] | None = None) -> None:
        """Reset this worker's states of a stripe to ``values``, by default the center's."""
        if self._shift is not None:
            self._shift.begin(stripe)
        for state, source in zip(self._local_states, self._local_sources):
            own = stripe.center if values is None else values
            start = own if source is None else cut(self.states[source], stripe.pieces)
            copy_all(cut(state, stripe.with_states), start)

    def move(self, by: Sequence[Array], written: int, with_average: bool = False) -> bool:
        """Add ``by`` to the center, and to workers at their next visits; False if incomplete."""
        # On failure ``by`` keeps the part not added. Stripes overwritten since ``written`` stay
        # unchanged. The average follows a center with which workers synchronize; ``with_average``
        # moves it too.
        shift = _required(self._shift)

        def move(stripe: Stripe) -> None:
            if self.overwrites.written == written:
                shift.move(stripe, by)
                if with_average and self._average is not None:
                    pieces = stripe.without_moments
                    for average, moved in zip(cut(self.states[self._average], pieces), cut(by, pieces)):
                        average += moved

        left = self._visit(move, True)
        if left:
            kept = [[piece.copy() for piece in cut(by, stripe.without_moments)] for stripe in left]
            for array in by:
                array[...] = 0
            for stripe, pieces in zip(left, kept):
                copy_all(cut(by, stripe.without_moments), pieces)
        return not left

    def change(self, old: Sequence[Array], new: Sequence[Array]) -> None:
        """Add ``new - old`` to the center, and keep the courier's moves; no worker changes it."""

        def work(stripe: Stripe) -> None:
            pieces = stripe.with_states
            average = [] if self._average is None else cut(self.states[self._average], pieces)
            for mean, before, after in zip(average, cut(old, pieces), cut(new, pieces)):
                np.copyto(mean, after, where=after != before)
            for center, before, after in zip(stripe.center, cut(old, stripe.pieces), cut(new, stripe.pieces)):
                if np.array_equal(center, before, equal_nan=True):
                    np.copyto(center, after)
                else:
                    center += after - before

        for stripe in self._visit(work, True):
            work(stripe)

    def move_to(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> bool:
        """Move the center and its average, while no worker changes them; see `move`."""
        shift = _required(self._shift)

        def move(stripe: Stripe) -> None:
            shift.move_to(stripe, values)
            if self._average is not None and averages:
                pieces = stripe.without_moments
                copy_all(cut(self.states[self._average], pieces), cut(averages, pieces))

        return not self._visit(move, True)

    def copy_parameters(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> None:
        """Copy the center's parameters and averages, without moments, under the locks."""

        def copy(stripe: Stripe) -> None:
            pieces = stripe.without_moments
            copy_all(cut(values, pieces), stripe.center)
            if averages and self._average is not None:
                copy_all(cut(averages, pieces), cut(self.states[self._average], pieces))

        with self._one_thread:
            for stripe in self._visit(copy, True):
                copy(stripe)

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]:
        """Copy the values and the rule's states consistently; with rounds, between two rounds."""
        with self._one_thread:  # File locks do not exclude threads of the same process.
            values, *states = (self._layout.empty() for _ in range(1 + len(self.states)))

            def copy(stripe: Stripe) -> None:
                sources = [stripe.center, *(cut(state, stripe.pieces) for state in self.states)]
                for target, source in zip([values, *states], sources):
                    copy_all(cut(target, stripe.pieces), source)

            if self._rounds is None:
                for stripe in self._visit(copy, True):
                    copy(stripe)
                return values, states
            self._require_open()

            def copy_every() -> None:
                for stripe in self._stripes:
                    copy(stripe)

            self._rounds.visit_between(
                copy_every,
                lambda deadline: self._locks.lock_all(deadline),
                self._locks.release_all,
                timeout("stripe"),
            )
            return values, states

    def holder(self, stripe: int) -> int | None:
        """Return the rank that holds a stripe, or None; a dead rank stays until the next visit."""
        return self._locks.holder(stripe)

    def finish(self) -> None:
        """Do nothing: no calls are queued."""

    def settle(self) -> None:
        """Do nothing: the controller reads the same memory."""

    def close(self, over: bool = False) -> None:
        self._segment.close()
        self._stripes, self._local_states, self.values, self.states, self._rounds = [], [], [], [], None
        self._momenta = []
        self.across_hosts = self._shift = None
        self._holders = free_holders()
        self.overwrites = Overwrites(no_header())
        self._locks.close()

    def _visit(
        self,
        work: Callable[[Stripe], None],
        locked: bool,
        timeout_s: float | None = None,
        stuck: Mapping[int, int] | None = None,
    ) -> list[Stripe]:
        """Do ``work`` once on each stripe, under its lock; locked stripes are retried later."""
        self._require_open()
        return self._locks.visit(work, locked, timeout("stripe") if timeout_s is None else timeout_s, stuck or {})

    def _require_open(self) -> None:
        if self._segment.closed:
            raise ConfigurationError("the center is closed: nothing can be done after close()")


def _required(shift: Shift | None) -> Shift:
    if shift is None:
        raise ConfigurationError("this center is that of a job on one host: no other moves it")
    return shift


class HostCenters:
    """Opens the center of one job under its name."""

    location = "host"

    def __init__(
        self,
        name: Name,
        workers: int = 1,
        gone: Callable[[int], bool] = lambda rank: False,
        several_hosts: bool = False,
    ) -> None:
        self.name = name
        self._several_hosts = several_hosts
        self._workers = workers
        self._gone = gone

    def create(self, layout: Layout, rule: Rule, rank: int) -> HostCenter:
        """Create the segment; replace one left by a dead creator."""
        stripes_wanted = STRIPES_EACH * self._workers if self._workers > 1 else 1
        stripe_bytes = max(STRIPE_BYTES, -(-layout.nbytes // stripes_wanted))
        average = average_of(rule)
        kept = -1 if average is None else average
        shape = Shape(stripe_bytes, len(rule.center_state), waits(rule), self._several_hosts, kept)
        segment = Segment.create(self.name, shape.size_bytes(layout))
        shape.write_header(segment, layout)
        return HostCenter(segment, layout, rule, shape, rank, self._gone)

    def unlink(self) -> None:
        Segment.unlink(self.name)

    def attach(self, layout: Layout, rule: Rule, rank: int) -> HostCenter:
        """Open the segment; raise `LayoutMismatchError` if model or version differ."""
        return self._open(layout, rule, rank)

    def watch(self, layout: Layout, by: int = CONTROLLER) -> HostCenter:
        """Open the segment for the controller or the courier, without touching its memory yet."""
        return self._open(layout, None, by)

    def _open(self, layout: Layout, rule: Rule | None, rank: int) -> HostCenter:
        segment = Segment.attach(self.name, populate=rank >= 0)
        shape = Shape.of(segment, layout)
        if shape is not None and shape.stripe_bytes >= STRIPE_BYTES:
            found = shape.states, shape.rounds
            if rule is None or found == (len(rule.center_state), waits(rule)):
                return HostCenter(segment, layout, rule, shape, rank, self._gone)
        segment.close()
        raise LayoutMismatchError(
            f"the center in {self.name} was made for another model or by another version of this package; "
            "run the same script and the same installation on every worker"
        )
