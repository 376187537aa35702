"""Time of each worker by phase: a clock in the worker, and its counters in the job's state.

The clock is always in one phase. Calls that wait or move data enter a phase and return to the phase
before; all other time is computation.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

COMPUTE, SYNC, COLLECTIVE, WAITING, LOADING, VALIDATION = range(6)
STEP = 6  # For `PhaseClock.record`.
PHASES = ("compute", "sync", "collective", "waiting", "loading", "validation")
# Parts of a step with a histogram; sync includes collective calls.
PARTS = ("compute", "sync", "waiting", "loading")
BINS = 48
_BINS_PER_OCTAVE = 2
_LEAST_EXPONENT = -16  # The first bin ends at 2**-16 s, 15 us; the last one is open.
_HALF_OCTAVE = math.sqrt(0.5)
_MOST = np.iinfo(np.uint32).max  # Maximum count of a bin.
_COUNTED_EACH_S, _COUNTED_AT_ONCE = 1.0, 4096
_STRANGER = -1  # Returned by `enter` in a thread that does not train.


def bins_of(seconds: Any) -> Any:
    """Return the bins of durations, an array of ints: two in each octave, from 15 us to 128 s."""
    seconds = np.asarray(seconds)
    fractions, exponents = np.frexp(seconds)
    bins = _BINS_PER_OCTAVE * (exponents - 1 - _LEAST_EXPONENT) + (fractions >= _HALF_OCTAVE) + 1
    return np.where(seconds > 0.0, np.clip(bins, 0, BINS - 1), 0)


def edges() -> Any:
    """Return the ends of the bins in seconds, without the open one, of shape (BINS - 1,)."""
    return 2.0 ** (_LEAST_EXPONENT + np.arange(BINS - 1) / _BINS_PER_OCTAVE)


class PhaseTimes(NamedTuple):
    """Time of a worker since its first step, by phase."""

    seconds: tuple[float, ...]  # One for each of PHASES.
    counts: Any  # Steps in each bin, of shape (PARTS, BINS); see `bins_of`.


class PhaseClock:
    """Adds up this worker's time by phase in the job's shared memory, from its first step on."""

    def __init__(self, seconds: Any, counts: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        # Only the thread of the steps is timed, and calls of compiled programs while it waits for
        # them. A change of phase takes 0.3 us, a step 3 us. Steps are binned each second, many
        # together: in a training loop, neither this code nor its objects are in the processor's
        # cache.
        self._clock = clock
        self._seconds: Any = memoryview(seconds)  # An item of an ndarray takes three times as long.
        self._counts: Any = counts
        self._phase, self._since = COMPUTE, 0.0
        self._thread = 0  # Thread of the steps; 0 before the first one.
        self._uncounted: list[tuple[int, list[float]]] = []  # Steps, and the seconds at their end.
        self._counted: list[float] = [0.0] * len(PHASES)  # Seconds at the end of the counted steps.
        self._count_at = 0.0
        self._at_latest_step = 0.0
        # Seconds of calls from programs, and the part of them already accounted for.
        self._called = self._taken = 0.0
        # record(phase, began, ended) is called at the end of each phase, and with STEP of each
        # step.
        self.record: Callable[[int, float, float], None] | None = None
        self.ahead = 0  # Steps of `step_ahead` that `step` has not counted yet.
        if not _clocks:
            os.register_at_fork(after_in_child=_detach_all)
        _clocks.add(self)

    def enter(self, phase: int) -> int:
        """Begin a phase; return the argument for `leave`."""
        if threading.get_ident() != self._thread:
            return _STRANGER
        before = self._phase
        self._switch(phase)
        return before

    def leave(self, before: int) -> None:
        if before != _STRANGER:
            self._switch(before)

    @contextlib.contextmanager
    def call_of_program(self) -> Iterator[None]:
        """Time a collective call that a compiled program makes in another thread."""
        if threading.get_ident() == self._thread:
            yield
            return
        began = self._clock()
        try:
            yield
        finally:
            self._called += self._clock() - began

    def _switch(self, phase: int) -> None:
        now = self._clock()
        if self._called > self._taken and self._phase == COMPUTE:
            called = min(self._called - self._taken, now - self._since)
            self._taken += called
            self._seconds[COLLECTIVE] += called
            self._seconds[COMPUTE] += now - self._since - called
        else:
            self._seconds[self._phase] += now - self._since
        if self.record is not None:
            self.record(self._phase, self._since, now)
        self._phase, self._since = phase, now

    def step(self, steps: int) -> None:
        """Record steps made since the last call, including those of `step_ahead`."""
        steps = int(steps)
        if self.ahead and steps > 0 and threading.get_ident() == self._thread:
            known = min(steps, self.ahead)
            self.ahead -= known
            if known == steps:
                return
            steps -= known
        self._step(steps)

    def step_ahead(self, steps: int) -> None:
        """Record steps that a later call of `step` includes; times callers that count rarely."""
        self._step(steps)
        if threading.get_ident() == self._thread:
            self.ahead += steps

    def _step(self, steps: int) -> None:
        thread = threading.get_ident()
        if thread != self._thread:
            if self._thread:
                return
            # The first step includes compilation.
            self._thread, self._since = thread, self._clock()
            self._taken = self._called
            self._at_latest_step = self._since
            return
        self._switch(self._phase)
        self._taken = self._called  # The rest overlapped with other phases.
        if self.record is not None:
            self.record(STEP, self._at_latest_step, self._since)
            self._at_latest_step = self._since
        if steps < 1:  # A correction of steps counted twice.
            return
        self._uncounted.append((steps, self._seconds.tolist()))
        if self._since >= self._count_at or len(self._uncounted) >= _COUNTED_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Bin the steps since the last call; they are dropped if a signal handler raises."""
        uncounted, self._uncounted = self._uncounted, []
        if not uncounted:
            return
        before, self._counted = self._counted, uncounted[-1][1]
        ends = [before, *(end for _, end in uncounted)]
        self._count_at = self._since + _COUNTED_EACH_S
        steps = np.array([number for number, _ in uncounted], float)
        took = np.diff(np.array(ends), axis=0).T / steps
        parts = (took[COMPUTE], took[SYNC] + took[COLLECTIVE], took[WAITING], took[LOADING])
        for counts, seconds in zip(self._counts, parts):
            more = counts + np.bincount(bins_of(seconds), steps, BINS)
            counts[:] = np.minimum(more, _MOST)  # Scripts may count rows or tokens as steps.

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far, by the name of the phase."""
        self.leave(self.enter(self._phase))
        return dict(zip(PHASES, self._seconds))

    def phase(self, phase: int) -> Phase:
        return Phase(self, phase)

    def loading(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over batches; the time until each one arrives counts as loading."""
        iterator = iter(batches)
        while True:
            before = self.enter(LOADING)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.leave(before)
            yield batch

    def close(self) -> None:
        """Flush, and detach from the job's shared memory."""
        try:
            self.flush()
        finally:
            self.detach()

    def detach(self) -> None:
        """Detach from the job's shared memory, which stays as it is."""
        self._thread = -1  # No thread has this number.
        self.record = None
        self._seconds, self._counts = [0.0] * len(PHASES), np.zeros((len(PARTS), BINS), np.uint32)


# A forked child, such as a loader, must not change the worker's shared times.
_clocks: weakref.WeakSet[PhaseClock] = weakref.WeakSet()


def _detach_all() -> None:
    for clock in list(_clocks):
        clock.detach()


class Phase:
    """Context manager for one phase; a class takes a third of the time of a generator."""

    __slots__ = ("_before", "_clock", "_phase")

    def __init__(self, clock: PhaseClock, phase: int) -> None:
        self._clock, self._phase = clock, phase
        self._before = _STRANGER

    def __enter__(self) -> None:
        self._before = self._clock.enter(self._phase)

    def __exit__(self, *exc: object) -> None:
        self._clock.leave(self._before)


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the duration that a share of the steps does not exceed: a bin's geometric middle."""
    total = sum(counts)
    if not total:
        return math.nan
    reached, ends = 0, edges()
    for index, count in enumerate(counts):
        reached += count
        if reached >= share * total:
            if index == 0:
                return 0.0
            return float(ends[min(index, BINS - 2)] * 2.0 ** (-0.5 / _BINS_PER_OCTAVE))
    return math.nan
