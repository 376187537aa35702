"""The time of each worker by phase: a clock in the worker, and its counters in the job's state.

The clock is always in one phase. Calls of this package that wait or move data enter theirs and go back to the phase
before, so whatever is in no other phase is computation.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "BINS",
    "COLLECTIVE",
    "COMPUTE",
    "LOADING",
    "PARTS",
    "PHASES",
    "STEP",
    "SYNC",
    "VALIDATION",
    "WAITING",
    "Phase",
    "PhaseClock",
    "PhaseTimes",
    "bins_of",
    "edges",
    "quantile",
]

COMPUTE, SYNC, COLLECTIVE, WAITING, LOADING, VALIDATION = range(6)
STEP = 6  # for `PhaseClock.record`
PHASES = ("compute", "sync", "collective", "waiting", "loading", "validation")
PARTS = ("compute", "sync", "waiting", "loading")  # of a step: those with a histogram; sync with collective calls
BINS = 48
_BINS_PER_OCTAVE = 2
_LEAST_EXPONENT = -16  # the first bin ends at 2**-16 s, 15 us; the last one is open
_HALF_OCTAVE = math.sqrt(0.5)
_MOST = np.iinfo(np.uint32).max  # of what a bin can count
_COUNTED_EACH_S, _COUNTED_AT_ONCE = 1.0, 4096
_STRANGER = -1  # from `enter` in a thread that does not train


def bins_of(seconds: Any) -> Any:
    """Return the bins of durations, an array of ints: two in each octave, from 15 us to 180 s."""
    seconds = np.asarray(seconds)
    fractions, exponents = np.frexp(seconds)
    bins = _BINS_PER_OCTAVE * (exponents - 1 - _LEAST_EXPONENT) + (fractions >= _HALF_OCTAVE) + 1
    return np.where(seconds > 0.0, np.clip(bins, 0, BINS - 1), 0)


def edges() -> Any:
    """Return where bins end, in seconds, but for the last one, which is open: an array of shape (BINS - 1,)."""
    return 2.0 ** (_LEAST_EXPONENT + np.arange(BINS - 1) / _BINS_PER_OCTAVE)


class PhaseTimes(NamedTuple):
    """The time of a worker since its first step, by phase.

    Attributes
    ----------
    seconds : tuple of float
        One for each of `PHASES`.
    counts : ndarray, shape (parts, BINS)
        For each of `PARTS`, how many steps took so long in it; see `bins_of`.
    """

    seconds: tuple[float, ...]
    counts: Any


class PhaseClock:
    """Adds up this worker's time by phase, in the job's shared memory; from its first step on.

    Only the thread that counts the steps is timed, and what compiled programs call while it waits for them. A change of
    phase takes about 0.3 us, a step 3 us. The counts follow each second, many steps at once: in a training loop neither
    Python's objects nor its code are in the processor's cache, and each line of it takes several times as long.

    Parameters
    ----------
    seconds : ndarray, shape (phases,), float64
    counts : ndarray, shape (parts, BINS), uint32
    clock : callable
        Returns seconds.

    Attributes
    ----------
    record : callable or None
        ``record(phase, began, ended)`` is called at the end of each phase, and with `STEP` at the end of each step.
    ahead : int
        Number of steps of `step_ahead` that `step` has not been told yet.
    """

    def __init__(self, seconds: Any, counts: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: Any = memoryview(seconds)  # an item of an ndarray takes three times as long
        self._counts: Any = counts
        self._phase, self._since = COMPUTE, 0.0
        self._thread = 0  # of the steps; 0 before the first one
        self._uncounted: list[tuple[int, list[float]]] = []  # steps, and the seconds at their end
        self._counted: list[float] = [0.0] * len(PHASES)  # the seconds at the end of the others
        self._count_at = 0.0
        self._at_latest_step = 0.0
        self._called = self._taken = 0.0  # seconds of calls from programs, and how many of them are accounted for
        self.record: Callable[[int, float, float], None] | None = None
        self.ahead = 0
        if not _clocks:
            os.register_at_fork(after_in_child=_detach_all)
        _clocks.add(self)

    def enter(self, phase: int) -> int:
        """Begin a phase; return the argument of `leave` at its end."""
        if threading.get_ident() != self._thread:
            return _STRANGER
        before = self._phase
        self._switch(phase)
        return before

    def leave(self, before: int) -> None:
        """Go back to the phase that was before `enter`."""
        if before != _STRANGER:
            self._switch(before)

    @contextlib.contextmanager
    def call_of_program(self) -> Iterator[None]:
        """Count a collective call that a compiled program makes in a thread of its own as such, not as computation.

        In the thread of the steps nothing is done: there the call enters its own phase.
        """
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
        """Record that so many steps have been made since the last call, those of `step_ahead` among them."""
        steps = int(steps)
        if self.ahead and steps > 0 and threading.get_ident() == self._thread:
            known = min(steps, self.ahead)
            self.ahead -= known
            if known == steps:
                return
            steps -= known
        self._step(steps)

    def step_ahead(self, steps: int) -> None:
        """Record steps that a call of `step` will count among its own: callers that count rarely are timed by step."""
        self._step(steps)
        if threading.get_ident() == self._thread:
            self.ahead += steps

    def _step(self, steps: int) -> None:
        thread = threading.get_ident()
        if thread != self._thread:
            if self._thread:
                return
            self._thread, self._since = thread, self._clock()  # the first step includes compilation
            self._taken = self._called
            self._at_latest_step = self._since
            return
        self._switch(self._phase)
        self._taken = self._called  # the rest ran beside other phases
        if self.record is not None:
            self.record(STEP, self._at_latest_step, self._since)
            self._at_latest_step = self._since
        if steps < 1:  # some were counted twice, and are taken back
            return
        self._uncounted.append((steps, self._seconds.tolist()))
        if self._since >= self._count_at or len(self._uncounted) >= _COUNTED_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Count the steps since the last call in their bins; if a signal's handler raises, they are left out."""
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
            counts[:] = np.minimum(more, _MOST)  # in a script that counts rows or tokens as steps

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds so far, by the name of the phase."""
        self.leave(self.enter(self._phase))
        return dict(zip(PHASES, self._seconds))

    def phase(self, phase: int) -> Phase:
        """Return a context manager within which this phase lasts."""
        return Phase(self, phase)

    def loading(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over batches; the time until each one comes is that of loading."""
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
        """Count what has not been counted, and detach from the job's shared memory."""
        try:
            self.flush()
        finally:
            self.detach()

    def detach(self) -> None:
        """Detach from the job's shared memory, which stays as it is."""
        self._thread = -1  # no thread's
        self.record = None
        self._seconds, self._counts = [0.0] * len(PHASES), np.zeros((len(PARTS), BINS), np.uint32)


# A forked child, such as a loader, is not the worker, whose memory it shares.
_clocks: weakref.WeakSet[PhaseClock] = weakref.WeakSet()


def _detach_all() -> None:
    for clock in list(_clocks):
        clock.detach()


class Phase:
    """A context manager for one phase; as a class it takes a third of the time of a generator."""

    __slots__ = ("_before", "_clock", "_phase")

    def __init__(self, clock: PhaseClock, phase: int) -> None:
        self._clock, self._phase = clock, phase
        self._before = _STRANGER

    def __enter__(self) -> None:
        self._before = self._clock.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.leave(self._before)


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the duration that this share of the steps does not exceed, within a bin by its geometric middle."""
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
