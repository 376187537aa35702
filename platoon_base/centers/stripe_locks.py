"""Locks of a center's stripes: file locks on the words that name the holders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from platoon_base.centers.host_memory import FIRST_HOLDER, FREE, HOLDER_NAMES, byte_of, lock_bytes
from platoon_base.centers.stripes import FIRST_PAUSE_S, LONGEST_PAUSE_S, Stripe, wait_until
from platoon_base.shm.segments import Segment
from platoon_base.system.awake import awake

__all__ = ["StripeLocks"]

_GOLDEN = 0.618034
_POLL_INTERVAL_S = 0.02


class StripeLocks:
    """Locks of all stripes, for one worker; the kernel releases them when the holder dies."""

    def __init__(
        self,
        segment: Segment,
        stripes: Sequence[Stripe],
        rank: int,
        gone: Callable[[int], bool],
        first: int = FIRST_HOLDER,
    ) -> None:
        self._segment, self._stripes, self._first = segment, list(stripes), first
        self._rank, self._gone = rank, gone
        # By stripe locked with the second byte: the dead holder of the first.
        self._dead_holders: dict[int, int] = {}

    def holder(self, stripe: int) -> int | None:
        """Return the rank that holds a stripe, or None; a dead rank stays until the next visit."""
        rank = int(self._stripes[stripe].holder["rank"])
        return None if rank == FREE else rank

    def visit(
        self, work: Callable[[Stripe], None], locked: bool, timeout_s: float, stuck: Mapping[int, int]
    ) -> list[Stripe]:
        """Do ``work`` once on each stripe, under its lock; return those that stayed locked."""
        # Ranks start at different stripes and retry locked ones later: N workers use N stripes.
        # Stripes in ``stuck``, locked at the last visit, are not waited for if no worker has
        # visited them since.
        stripes = self._stripes
        start = int(self._rank * _GOLDEN * len(stripes)) % max(len(stripes), 1)
        todo = stripes[start:] + stripes[:start]
        if not locked:
            for stripe in todo:
                work(stripe)
            return []
        try:
            return self._visit_locked(work, todo, timeout_s, stuck)
        except BaseException:  # A Ctrl-C may arrive right after a lock is acquired.
            self.release_all()
            raise

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
            byte, dead = byte_of(stripe.index, self._first), self._dead_holders.pop(stripe.index, None)
            stripe.holder["rank"] = FREE if dead is None else dead
            self._segment.unlock(byte if dead is None else byte + 1)
        return True

    def lock(self, stripe: Stripe) -> bool:
        """Try to lock a stripe, by its second byte if a dead holder's child locks the first."""
        byte = byte_of(stripe.index, self._first)
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
        todo = list(self._stripes)

        def are_locked() -> bool:
            todo[:] = [stripe for stripe in todo if not self.lock(stripe)]
            return not todo

        return wait_until(are_locked, deadline - awake())

    def release_all(self) -> None:
        """Unlock every stripe that this handle may hold."""
        for stripe in self._stripes:
            if stripe.holder["rank"] == self._rank:
                stripe.holder["rank"] = self._dead_holders.pop(stripe.index, FREE)
        self._segment.unlock(*lock_bytes(len(self._stripes), self._first))

    def close(self) -> None:
        """Release the memory; no stripe may be locked."""
        self._stripes = []

    def timeout_text(self, taken: list[Stripe], timeout_s: float) -> str:
        ranks = sorted({rank for s in taken if (rank := self.holder(s.index)) is not None})
        who = ", ".join(HOLDER_NAMES.get(r, f"rank {r}") for r in ranks) or "another worker"
        return (
            f"waited {timeout_s:g} s for {len(taken)} stripes of the center that {who} holds: "
            "is it stopped (SIGSTOP) or swapping? Look into its log, or give a longer timeout_s"
        )
