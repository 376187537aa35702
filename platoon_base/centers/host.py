"""Center in posix shared memory, cut into stripes with a lock each."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.across_hosts import AcrossHosts, HostsMeans, HostsRounds, Overwrites, Shift, await_hosts, wide
from platoon_base.centers.base import Named, NonFiniteElement, OnHost
from platoon_base.centers.host_kernels import undo_bytes
from platoon_base.centers.host_rounds import Rounds, contributions_of
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
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules.center import Rule, average_of, end_momentum, local_sources, momenta, rule_of_moments
from platoon_base.rules.outer import OuterRule, waits
from platoon_base.shm.schema import PAGE, Part, Schema, Views
from platoon_base.shm.segments import Name
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

STRIPES_EACH = 4  # Stripes per worker, if there are several.


def _parts(header: Any, layout: Layout) -> Iterator[Part]:
    stripes, states = len(layout.stripes(max(int(header["stripe_bytes"]), STRIPE_BYTES))), int(header["states"])
    yield Part("holders", HOLDER, (stripes,))
    yield Part("values", layout, (), PAGE)
    yield Part("states", layout, (states,))
    if header["rounds"]:
        yield Part("undo", "u1", (stripes, undo_bytes(layout, states)))
        slot = contributions_of(layout, stripes)
        yield Part("of_hosts", slot, (int(header["several_hosts"]),))
        yield Part("slots", slot, (0,), PAGE)
    elif header["several_hosts"]:
        yield Part("moves", wide(layout))  # The sum of other hosts' moves, see `Shift`.


CENTER = Schema(
    "a center",
    b"PLTNCNTR",
    15,
    [
        ("stripe_bytes", "u8"),
        ("states", "u4"),
        ("rounds", "u4"),
        ("several_hosts", "u4"),
        ("average", "i4"),  # Index of the state that averages the center, or -1.
        ("written", "u8"),
        ("spread", "u8"),
        ("center_version", "u8"),
        ("mean", "u8"),
        ("slots", "u4"),  # Workers with memory for their contributions to rounds.
    ],
    _parts,
)


class HostCenter(OnHost):
    """Center on one host; stripes with a stalled holder are left out until they are released."""

    def __init__(
        self,
        memory: Views,
        layout: Layout,
        rule: Rule | None,
        rank: int,
        gone: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self._segment, header = memory.segment, memory.header
        self._layout = layout
        self._rank = rank
        self._holders = memory.holders
        self._several_hosts = bool(header["several_hosts"])
        self.overwrites = Overwrites(header)
        self.values: list[Array] = memory.values
        self.states: list[list[Array]] = memory.states
        self._local_sources = sources = [] if rule is None else local_sources(rule)
        self._momenta = [] if rule is None else [self.states[i] for i in momenta(rule)]
        self._average = None if header["average"] < 0 else int(header["average"])
        self._local_states = [layout.views(np.zeros(layout.nbytes, dtype=np.uint8)) for _ in sources]
        splits = rule is None or rule_of_moments(rule) is not rule
        trained = layout.num_trained if splits else len(layout)
        self._stripes = [
            Stripe(i, p, self.values, self.states, self._local_states, self._holders[i], trained, layout.num_trained)
            for i, p in enumerate(layout.stripes(int(header["stripe_bytes"])))
        ]
        self.locks = StripeLocks(self._segment, self._stripes, rank, gone, memory.at["holders"])
        self._rounds: Rounds | None = None
        self._shift: Shift | None = None
        self.across_hosts: AcrossHosts | None = None
        if header["rounds"]:
            self._rounds = Rounds(memory, layout, self._stripes, rank)
            if self._several_hosts:
                self.across_hosts = HostsRounds(
                    layout,
                    self._stripes,
                    self._rounds,
                    self._holders,
                    self.locks.visit,
                )
        elif self._several_hosts:
            remembering = [state for state, source in zip(self._local_states, sources) if source is None]
            self._shift = Shift(layout, memory.moves, remembering)
            self.across_hosts = HostsMeans(
                layout, header, self.copy_parameters, self.move_to, self._put_all, self._average
            )
        self._one_thread = threading.Lock()

    def sync(self, rule: Rule, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once to each stripe, except those locked for long."""
        flat, of_moments = [array.reshape(-1) for array in arrays], rule_of_moments(rule)

        def update(stripe: Stripe) -> tuple[int, int] | None:
            pieces = [flat[p.parameter][p.start : p.stop] for p in stripe.pieces]
            if self._shift is not None:
                self._shift.follow(stripe, pieces)
            refused = stripe.apply(rule, of_moments, pieces)
            if self._rounds is not None:
                self._rounds.note_changed(stripe)
            return refused

        return self.locks.synchronize(update, timeout_s, locked)

    @property
    def whole(self) -> bool:
        return not self.locks.left_out

    def contribute(self, arrays: Sequence[Array], part: float, timeout_s: float) -> NonFiniteElement | None:
        """Add this worker's progress to stripes that have not changed since it copied them."""

        def add(rounds: Rounds, stripe: Stripe) -> tuple[int, int] | None:
            return rounds.contribute(stripe, cut(arrays, stripe.pieces), part)

        return self._visit_round(add, timeout_s)

    def note_met(self, number: int, timeout_s: float) -> None:
        """Close round ``number`` to contributions; its step is made later."""

        def note(rounds: Rounds, stripe: Stripe) -> None:
            rounds.note_met(stripe, number)

        self._visit_round(note, timeout_s)

    def take_over(
        self, rule: OuterRule, arrays: Sequence[Array], number: int, timeout_s: float
    ) -> NonFiniteElement | None:
        """Set ``arrays`` to the center after a round, and make the outer step where needed."""

        def take(rounds: Rounds, stripe: Stripe) -> tuple[int, int] | None:
            return rounds.take_over(stripe, rule, cut(arrays, stripe.pieces), number)

        if self.across_hosts is not None:
            began = awake()
            self.across_hosts.wait(number, timeout_s)
            timeout_s = max(timeout_s - (awake() - began), timeout("stripe"))
        return self._visit_round(take, timeout_s)

    def _visit_round(
        self, work: Callable[[Rounds, Stripe], tuple[int, int] | None], timeout_s: float
    ) -> NonFiniteElement | None:
        """Do a step of a round on each stripe; wait for locked ones, since a round needs all."""
        rounds = self._rounds
        if rounds is None:
            raise ConfigurationError("this center has no rounds: it was made for a rule that does not wait")
        return self.locks.synchronize(lambda stripe: work(rounds, stripe), timeout_s, every=True)

    def read(
        self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False, averaged: bool = False
    ) -> None:
        """Copy the center into ``out``; stripes locked for long are read anyway."""
        source = self.averages or self.values if averaged else self.values

        def copy(stripe: Stripe) -> None:
            if self._rounds is not None:
                self._rounds.note_read(stripe)
            values = cut(source, stripe.pieces)
            copy_all(cut(out, stripe.pieces), values)
            if begin:
                self._start(stripe, values)

        left = self.locks.visit(copy, min(timeout_s, timeout("stripe")), locked, self.locks.left_out)
        if left and timeout_s <= timeout("stripe"):
            raise self.locks.timeout_error(left, timeout_s)
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
        self.locks.synchronize(copy, timeout_s, locked, every=True)

    def _overwrite(self, work: Callable[[Stripe], None], timeout_s: float) -> None:
        """Do ``work`` with all stripes locked, and wait until the other hosts have the center."""
        deadline = awake() + timeout_s
        with self._one_thread:
            try:
                self.locks.require_all(deadline, timeout_s)
                for stripe in self._stripes:
                    work(stripe)
                count = self.overwrites.note()
            finally:
                self.locks.release_all()
        what = "the other hosts to receive the center that this worker has overwritten"
        await_hosts(lambda: self.overwrites.spread >= count, max(deadline - awake(), timeout("stripe")), what)

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's; False if a stripe stayed locked."""
        if self.across_hosts is None:
            raise ConfigurationError("this center belongs to a job on one host: there is no other center to replace it")
        return self.across_hosts.replace(values, states, number)

    def _put_all(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> bool:
        """Write values and the rule's states into the center; False if a stripe stayed locked."""

        def put(stripe: Stripe) -> None:
            self._put(stripe, cut(values, stripe.pieces))
            for state, given in zip(self.states, states):  # This comes last, since `_put` also sets an average.
                copy_all(cut(state, stripe.pieces), cut(given, stripe.pieces))

        return not self.locks.visit(put)

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Fill a new center before others attach."""
        for stripe in self._stripes:
            self._put(stripe, cut(values, stripe.pieces))
        for state, given in zip(self.states, states):  # This comes last, since `_put` also sets an average.
            copy_all(state, given)
        for stripe in self._stripes:
            self._start(stripe)

    def _put(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Write values into a stripe, and reset this worker's states to them."""
        if self._rounds is not None:
            self._rounds.write(stripe, values)
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

        left = self.locks.visit(move)
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

        self.locks.visit_every(work)

    def move_to(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> bool:
        """Move the center and its average, while no worker changes them; see `move`."""
        shift = _required(self._shift)

        def move(stripe: Stripe) -> None:
            shift.move_to(stripe, values)
            if self._average is not None and averages:
                pieces = stripe.without_moments
                copy_all(cut(self.states[self._average], pieces), cut(averages, pieces))

        return not self.locks.visit(move)

    def copy_parameters(self, values: Sequence[Array], averages: Sequence[Array] = ()) -> None:
        """Copy the center's parameters and averages, without moments, under the locks."""

        def copy(stripe: Stripe) -> None:
            pieces = stripe.without_moments
            copy_all(cut(values, pieces), stripe.center)
            if averages and self._average is not None:
                copy_all(cut(averages, pieces), cut(self.states[self._average], pieces))

        with self._one_thread:
            self.locks.visit_every(copy)

    def snapshot(self, may_wait: bool = True) -> tuple[list[Array], list[list[Array]]]:
        """Copy the values and the rule's states consistently; with rounds, between two rounds."""
        with self._one_thread:  # File locks do not exclude threads of the same process.
            values, *states = (self._layout.empty() for _ in range(1 + len(self.states)))

            def copy(stripe: Stripe) -> None:
                sources = [stripe.center, *(cut(state, stripe.pieces) for state in self.states)]
                for target, source in zip([values, *states], sources):
                    copy_all(cut(target, stripe.pieces), source)

            if self._rounds is None:
                self.locks.visit_every(copy)
            else:
                self._copy_between(self._rounds, copy, timeout("stripe"))
            return values, states

    def _copy_between(self, rounds: Rounds, copy: Callable[[Stripe], None], patience_s: float) -> None:
        """Copy all stripes between two rounds, or after ``patience_s`` with a warning."""
        deadline = awake() + patience_s

        def is_copied() -> bool:
            try:
                between = self.locks.lock_all(deadline) and rounds.between()
                if not between and awake() <= deadline:
                    return False
                if not between:
                    log.warning(
                        "found no time between two rounds within %g s, so this copy mixes two rounds", patience_s
                    )
                for stripe in self._stripes:
                    copy(stripe)
                return True
            finally:
                self.locks.release_all()

        wait_until(is_copied, math.inf)

    def close(self, over: bool = False) -> None:
        self._segment.close()
        if self._rounds is not None:
            self._rounds.close()
        self._stripes, self._local_states, self.values, self.states, self._rounds = [], [], [], [], None
        self._momenta = []
        self.across_hosts = self._shift = None
        self._holders = np.empty(0, HOLDER)
        self.overwrites = Overwrites(CENTER.new_header())
        self.locks.close()


def _required(shift: Shift | None) -> Shift:
    if shift is None:
        raise ConfigurationError("this center belongs to a job on one host: no other host updates it")
    return shift


class HostCenters(Named):
    """Opens the center of one job under its name."""

    def __init__(
        self,
        name: Name,
        workers: int = 1,
        gone: Callable[[int], bool] = lambda rank: False,
        hosts: int = 1,
    ) -> None:
        super().__init__(name, workers, gone)
        self._hosts = hosts

    def create(self, layout: Layout, rule: Rule, rank: int) -> HostCenter:
        """Create the segment; replace one left by a dead creator."""
        stripes_wanted = STRIPES_EACH * self._workers if self._workers > 1 else 1
        stripe_bytes = max(STRIPE_BYTES, -(-layout.nbytes // stripes_wanted))
        average = average_of(rule)
        slots = -(-self._workers // self._hosts) if waits(rule) else 0
        memory = CENTER.create(
            self.name,
            layout,
            more=slots * contributions_of(layout, len(layout.stripes(stripe_bytes))).nbytes,
            stripe_bytes=stripe_bytes,
            several_hosts=self._hosts > 1,
            average=-1 if average is None else average,
            slots=slots,
            **_needs(rule),
        )
        memory.holders["rank"] = FREE
        return HostCenter(memory, layout, rule, rank, self._gone)

    def attach(self, layout: Layout, rule: Rule, rank: int) -> HostCenter:
        """Open the segment; raise `LayoutMismatchError` if model or version differ."""
        return HostCenter(CENTER.attach(self.name, layout, **_needs(rule)), layout, rule, rank, self._gone)

    def watch(self, layout: Layout, by: int = CONTROLLER) -> HostCenter:
        """Open the segment for the controller or the courier, without touching its memory yet."""
        return HostCenter(CENTER.attach(self.name, layout, populate=False), layout, None, by, self._gone)


def _needs(rule: Rule) -> dict[str, Any]:
    return {"states": len(rule.center_state), "rounds": waits(rule)}
