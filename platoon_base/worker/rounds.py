"""Rounds of an outer-step rule on one worker: contribute, wait for the others, copy the center."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.across_hosts import HostsRounds
from platoon_base.centers.base import NonFiniteElement, RoundCenter
from platoon_base.centers.stripes import copy_all, wait_until
from platoon_base.channels.client import ControlClient
from platoon_base.coordination import messages as msg
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError
from platoon_base.rules.outer import OuterRule
from platoon_base.shm.turns import NoTurns, Turns
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout
from platoon_base.worker.progress_row import ProgressRow

_BLOCK = 1 << 15  # The caches hold this many elements.
_COMPARE_AGAIN_S = 1.0


class _Sent(NamedTuple):
    """A round to which this worker has contributed, and whose center it has not copied yet."""

    number: int
    rule: OuterRule
    # Called after the copy, still within the turn: a checkpoint must be consistent.
    on_center: Callable[[int, float], None]


class WorkerRounds:
    """The rounds of one worker, each together with all workers that synchronize.

    A worker whose parameters did not start from the current center, such as one that joined during
    a round, contributes nothing; it continues from the new center like the others.

    `make` begins a round that overlaps; the next one, or `complete`, completes it. Meanwhile the
    worker trains on and keeps its progress since the contribution s: ``x := c + (x - s)``.
    """

    def __init__(
        self,
        client: ControlClient,
        center: RoundCenter,
        rule_for: Callable[[int], OuterRule],
        turns: Turns | NoTurns,
        progress: ProgressRow,
    ) -> None:
        self._client, self._center, self._rule_for, self._turns = client, center, rule_for, turns
        self._progress = progress
        self._sent: _Sent | None = None
        # For rounds that overlap: the contributed values, and the new center.
        self._values: list[Array] = []
        self._new: list[Array] = []

    @property
    def under_way(self) -> bool:
        return self._sent is not None

    def make(self, arrays: Sequence[Array], part: float, timeout_s: float, overlaps: bool) -> NonFiniteElement | None:
        """Complete the round under way, make the next; return the first element that was refused.

        With ``overlaps`` it returns once all workers have contributed. ``arrays`` change in place.
        """
        deadline = awake() + timeout_s
        refused = self.complete(arrays, timeout_s)
        began = time.perf_counter()
        # The center may be copied even if the wait for workers used up the timeout.
        left_s = max(deadline - awake(), min(timeout("stripe"), timeout_s))
        with self._turns.take("contribute", left_s, self._center.finish):
            kept_out = self._center.contribute(arrays, part, left_s)
        met = self._client.wait_for_all(msg.Round(timeout_s=max(deadline - awake(), 0.0)), msg.RoundReached)
        # All workers pass the same number of workers, whichever of them makes the step on a stripe.
        count = functools.partial(self._count, position=self._progress.position)
        sent = _Sent(met.number, self._rule_for(len(met.ranks)), count)
        left_s = max(deadline - awake(), min(timeout("stripe"), timeout_s))
        if overlaps and kept_out is None:
            self._center.note_met(met.number, left_s)
            self._sent = sent
            self.go_on_from(arrays)
            return refused
        stepped = self._take_over(sent, arrays, left_s, began)
        return next((each for each in (refused, kept_out, stepped) if each is not None), None)

    def _count(self, number: int, began: float, position: tuple[int, int, int]) -> None:
        self._progress.count_sync(began, True, number, position)

    def go_on_from(self, arrays: Sequence[Array]) -> None:
        """Count progress during the round under way from these values."""
        if self._sent is None:
            return
        if not self._values:
            self._values, self._new = ([np.empty(x.shape, x.dtype) for x in arrays] for _ in range(2))
        copy_all(self._values, arrays)

    def complete(self, arrays: Sequence[Array], timeout_s: float) -> NonFiniteElement | None:
        """Set ``arrays`` to the new center plus their progress; if it raises, call it again."""
        sent = self._sent
        if sent is None:
            return None

        def count(number: int, began: float) -> None:
            self._sent = None
            for array, new, contributed in zip(arrays, self._new, self._values):
                _go_on(array, new, contributed)
            sent.on_center(number, began)

        return self._take_over(sent._replace(on_center=count), self._new, timeout_s, time.perf_counter())

    def _take_over(
        self, sent: _Sent, arrays: Sequence[Array], timeout_s: float, began: float
    ) -> NonFiniteElement | None:
        with self._turns.take("step", timeout_s, self._center.finish):
            stepped = self._center.take_over(sent.rule, arrays, sent.number, timeout_s)
            sent.on_center(sent.number, began)
        return stepped


def _go_on(array: Array, new: Array, sent: Array) -> None:
    """Set ``array`` to ``new + (array - sent)``; unchanged elements get the bits of ``new``."""
    x, c, s = (each.reshape(-1) for each in (array, new, sent))
    for begin in range(0, x.size, _BLOCK):
        block = slice(begin, begin + _BLOCK)
        same = x[block] == s[block]
        np.subtract(x[block], s[block], out=s[block])
        np.add(c[block], s[block], out=x[block])
        np.copyto(x[block], c[block], where=same)


def await_latest_round(client: ControlClient, center: HostsRounds, timeout_s: float) -> None:
    """Wait until the centers of all hosts are that of the latest round; a collective call."""
    began = None
    while True:
        compared = client.wait_for_all(msg.RoundsMade(number=center.made, timeout_s=timeout_s), msg.RoundsCompared)
        if not compared.behind:
            return
        now = awake()
        began = now if began is None else began
        if now - began > timeout_s:
            raise CollectiveTimeoutError(
                f"the hosts of ranks {', '.join(map(str, compared.behind))} still have an older "
                f"center than that of round {compared.latest}, {now - began:.0f} s after all "
                "workers arrived: is the network slow or down? Read the logs of the launchers, "
                "or pass a longer timeout_s"
            )
        if now - began > timeout("fetch"):  # Usually a host that made it sends it.
            center.want(compared.latest)
        wait_until(functools.partial(_has_made, center, compared.latest), min(_COMPARE_AGAIN_S, timeout_s))


def _has_made(center: HostsRounds, number: int) -> bool:
    return center.made >= number


def require_part(part: Any) -> None:
    """Raise `ConfigurationError` unless ``part`` is a number in [0, 1]."""
    if not (isinstance(part, (int, float, np.number)) and 0 <= part <= 1):
        raise ConfigurationError(
            f"got part={part!r}: it is the number of batches since the last synchronization "
            "divided by the period, from 0 to 1; leave it out for a whole period"
        )
