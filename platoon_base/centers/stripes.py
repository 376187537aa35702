"""Stripes of a center on the host: pieces of the parameters, locked and updated together.

Each has a record in shared memory. Its first byte is the stripe's lock, a file lock of the kernel's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.host_kernels import Plan
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.layout import Piece
from platoon_base.rules.center import Rule
from platoon_base.shm.segments import Segment
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

STRIPE_BYTES = 1 << 21  # Minimum size, large relative to the cost of a lock.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 2e-3  # Pauses between attempts to lock.
_GOLDEN = 0.618034
_POLL_INTERVAL_S = 0.02
FREE, CONTROLLER, COURIER = -1, -2, -3  # Holders that are not ranks.
_NAMES = {CONTROLLER: "the controller", COURIER: "the courier"}

# A stripe's record. ``visits``: a stripe that stays locked without a new visit is stuck.
# The rest is of rounds. ``round``: the latest round whose step was made. ``generation``: number of
# changes. ``met``: the latest overlapping round to which all have contributed. ``wanted``, of the
# first stripe: the round whose center a worker waits for although its host had no part in it.
# ``gathered``: the latest round whose sum over all hosts has arrived. ``done``: elements up to which
# the step is made. ``copied``: elements up to which the current block was saved.
HOLDER = np.dtype(
    [
        ("rank", "i4"),
        ("visits", "u4"),
        ("shifts", "u4"),
        ("round", "u4"),
        ("generation", "u4"),
        ("met", "u4"),
        ("wanted", "u4"),
        ("gathered", "u4"),
        ("done", "u8"),
        ("copied", "u8"),
    ],
    align=True,
)


class Stripe:
    """One stripe: its pieces of the center, and the `Plan` that updates them."""

    def __init__(
        self,
        index: int,
        pieces: tuple[Piece, ...],
        center: list[Array],
        states: list[list[Array]],
        local_states: list[list[Array]],
        holder: Any,
        trained: int,
        first_moment: int,
    ) -> None:
        self.index = index
        self.holder = holder
        self.pieces = pieces
        # Parameters below ``trained`` use the rule and its states; later ones are moments and use
        # `rule_of_moments`. From ``first_moment`` on, all parameters are moments under any rule.
        self.without_moments = tuple(piece for piece in pieces if piece.parameter < first_moment)
        self.center = cut(center, pieces)
        self._trained = sum(piece.parameter < trained for piece in pieces)
        self.with_states, of_moments = pieces[: self._trained], self.center[self._trained :]
        own, shared = ([cut(state, self.with_states) for state in each] for each in (local_states, states))
        self._plan = Plan(self.center[: self._trained], own, shared) if self._trained else None
        self._moments_plan = Plan(of_moments) if of_moments else None

    def apply(self, rule: Rule, of_moments: Rule, arrays: Sequence[Array]) -> tuple[int, int] | None:
        """Apply both rules once between pieces of the parameters and the center; see `Plan.run`."""
        refused = None if self._plan is None else self._plan.run(rule, arrays[: self._trained])
        if self._moments_plan is None:
            return refused
        behind = self._moments_plan.run(of_moments, arrays[self._trained :])
        return (self._trained + behind[0], behind[1]) if refused is None and behind is not None else refused


def copy_all(targets: Sequence[Array], sources: Sequence[Any]) -> None:
    for target, source in zip(targets, sources):
        np.copyto(target, source)


def cut(arrays: Sequence[Array], pieces: tuple[Piece, ...]) -> list[Array]:
    """Return the pieces of parameters as flat views."""
    return [arrays[p.parameter].reshape(-1)[p.start : p.stop] for p in pieces]


def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Poll ``done``, at growing intervals, until it returns True; return False at the timeout."""
    deadline, pause = awake() + timeout_s, FIRST_PAUSE_S
    while not done():
        if awake() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return True


class StripeLocks:
    """Locks of all stripes, for one worker; the kernel releases them when the holder dies."""

    def __init__(
        self,
        segment: Segment,
        stripes: Sequence[Stripe],
        rank: int,
        gone: Callable[[int], bool],
        first: int,
    ) -> None:
        # ``first`` is the byte of the first stripe's record. A second byte of a record is locked if a
        # dead holder's child still locks the first.
        self._segment, self._stripes, self._first = segment, list(stripes), first
        self._rank, self._gone = rank, gone
        # Stripes left out by the last `synchronize`, with their numbers of visits then.
        self.left_out: dict[int, int] = {}
        # By stripe locked with the second byte: the dead holder of the first.
        self._dead_holders: dict[int, int] = {}

    def holder(self, stripe: int) -> int | None:
        """Return the rank that holds a stripe, or None; a dead rank stays until the next visit."""
        rank = int(self._stripes[stripe].holder["rank"])
        return None if rank == FREE else rank

    def visit(
        self,
        work: Callable[[Stripe], None],
        timeout_s: float | None = None,
        locked: bool = True,
        stuck: Mapping[int, int] | None = None,
    ) -> list[Stripe]:
        """Do ``work`` once on each stripe, under its lock; return those that stayed locked."""
        # Ranks start at different stripes and retry locked ones later: N workers use N stripes.
        # Stripes in ``stuck``, locked at the last visit, are not waited for if no worker has
        # visited them since.
        self._require_open()
        stripes = self._stripes
        start = int(self._rank * _GOLDEN * len(stripes)) % max(len(stripes), 1)
        todo = stripes[start:] + stripes[:start]
        if not locked:
            for stripe in todo:
                work(stripe)
            return []
        try:
            return self._visit_locked(work, todo, timeout("stripe") if timeout_s is None else timeout_s, stuck or {})
        except BaseException:  # A Ctrl-C may arrive right after a lock is acquired.
            self.release_all()
            raise

    def visit_every(self, work: Callable[[Stripe], None], timeout_s: float | None = None) -> None:
        """Do ``work`` on each stripe, after ``timeout_s`` also on locked ones."""
        for stripe in self.visit(work, timeout_s):
            work(stripe)

    def synchronize(
        self,
        work: Callable[[Stripe], tuple[int, int] | None],
        timeout_s: float,
        locked: bool = True,
        every: bool = False,
    ) -> NonFiniteElement | None:
        """Do ``work``, which may refuse an element, on each stripe; return the first one refused.

        Unless ``every`` stripe is needed, those locked for long are left out.
        """
        refusals: list[NonFiniteElement] = []

        def visit(stripe: Stripe) -> None:
            refused = work(stripe)
            if refused is not None:
                piece = stripe.pieces[refused[0]]
                refusals.append(NonFiniteElement(piece.parameter, piece.start + refused[1]))

        patience_s = timeout_s if every else min(timeout_s, timeout("stripe"))
        left = self.visit(visit, patience_s, locked, {} if every else self.left_out)
        if left and patience_s == timeout_s:
            raise self.timeout_error(left, timeout_s)
        left_out = {stripe.index: int(stripe.holder["visits"]) for stripe in left}
        if left_out.keys() - self.left_out.keys():
            log.warning("rank %d skips locked stripes: %s", self._rank, self.timeout_error(left, patience_s))
        self.left_out = left_out
        return min(refusals, default=None)

    def _visit_locked(
        self, work: Callable[[Stripe], None], todo: list[Stripe], timeout_s: float, stuck: Mapping[int, int]
    ) -> list[Stripe]:
        given_up: list[Stripe] = []
        pause, began = FIRST_PAUSE_S, awake()
        while todo:
            taken = [stripe for stripe in todo if not self._work_locked(work, stripe)]
            worked = len(todo) - len(taken)
            now = awake()
            # Not in the first pass: a worker that has just locked a stripe has not counted its
            # visit yet.
            known = stuck if now - began > _POLL_INTERVAL_S else {}
            hopeless = [stripe for stripe in taken if known.get(stripe.index) == int(stripe.holder["visits"])]
            given_up += hopeless
            todo = [stripe for stripe in taken if stripe not in hopeless]
            if worked:
                pause = FIRST_PAUSE_S
            elif todo and now - began > timeout_s:
                return given_up + todo
            elif todo:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        return given_up

    def _work_locked(self, work: Callable[[Stripe], None], stripe: Stripe) -> bool:
        if not self.lock(stripe):
            return False
        try:
            work(stripe)
        finally:
            byte, dead = self._byte_of(stripe), self._dead_holders.pop(stripe.index, None)
            stripe.holder["rank"] = FREE if dead is None else dead
            self._segment.unlock(byte if dead is None else byte + 1)
        return True

    def _require_open(self) -> None:
        if self._segment.closed:
            raise ConfigurationError("the center is closed: it cannot be used after close()")

    def _byte_of(self, stripe: Stripe) -> int:
        return self._first + HOLDER.itemsize * stripe.index

    def lock(self, stripe: Stripe) -> bool:
        """Try to lock a stripe, by its second byte if a dead holder's child locks the first."""
        byte = self._byte_of(stripe)
        if not self._segment.try_lock(byte):
            dead = int(stripe.holder["rank"])
            if dead < 0 or not self._gone(dead) or not self._segment.try_lock(byte + 1):
                return False
            self._dead_holders[stripe.index] = dead
        stripe.holder["visits"] += 1
        stripe.holder["rank"] = self._rank
        return True

    def lock_all(self, deadline: float) -> bool:
        """Lock all stripes before ``deadline``, a time of `awake`; False if some stay locked."""
        # No deadlock: other workers hold one stripe each and wait for no second one.
        self._require_open()
        todo = list(self._stripes)

        def are_locked() -> bool:
            todo[:] = [stripe for stripe in todo if not self.lock(stripe)]
            return not todo

        return wait_until(are_locked, deadline - awake())

    def require_all(self, deadline: float, timeout_s: float) -> None:
        """Lock all stripes before ``deadline``, or raise `CollectiveTimeoutError`; call `release_all` next."""
        if not self.lock_all(deadline):
            raise self.timeout_error([each for each in self._stripes if each.holder["rank"] != self._rank], timeout_s)

    def release_all(self) -> None:
        """Unlock every stripe that this handle may hold."""
        for stripe in self._stripes:
            if stripe.holder["rank"] == self._rank:
                stripe.holder["rank"] = self._dead_holders.pop(stripe.index, FREE)
        self._segment.unlock(self._first, HOLDER.itemsize * len(self._stripes))

    def close(self) -> None:
        """Release the memory; no stripe may be locked."""
        self._stripes = []

    def timeout_error(self, taken: list[Stripe], timeout_s: float) -> CollectiveTimeoutError:
        ranks = sorted({rank for s in taken if (rank := self.holder(s.index)) is not None})
        who = ", ".join(_NAMES.get(r, f"rank {r}") for r in ranks) or "another worker"
        return CollectiveTimeoutError(
            f"waited {timeout_s:g} s for {len(taken)} stripes of the center that {who} holds: is "
            "it stopped (SIGSTOP) or swapping? Read its log, or pass a longer timeout_s"
        )
