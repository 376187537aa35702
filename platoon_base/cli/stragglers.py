"""Finds a worker that is slower than the others, and the phase in which it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from platoon_base.cli.recent import same_process
from platoon_base.cli.table import duration
from platoon_base.controller.outcome import Snapshot
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import BINS, COLLECTIVE, COMPUTE, LOADING, SYNC, WAITING, PhaseTimes, edges

__all__ = ["PHASE_NAMES", "Straggler", "StragglerWatch", "advice", "find_straggler", "percent", "seconds_text"]

_WINDOW_S = 2.0
_LEAST_STEPS = 3  # required of each worker in a window
_TIMES_AS_LONG, _LEAST_S = 2.0, 0.005  # Times of steps vary by less.
# A worker's own time: waits and collective calls depend on others.
_OWN = (COMPUTE, SYNC, LOADING)
PHASE_NAMES = {COMPUTE: "computation", SYNC: "synchronization with the center", LOADING: "loading"}


class Straggler(NamedTuple):
    rank: int
    phase: int  # the phase in which it loses most time
    seconds: float  # per step in this phase
    others: float  # the median of the others, per step in this phase
    waiting: float  # the others' share of time in waits and collective calls
    loading_known: bool  # otherwise loading is a part of the computation

    @property
    def line(self) -> str:
        """The finding in one line, with what to do."""
        name = PHASE_NAMES[self.phase]
        if self.phase == COMPUTE and not self.loading_known:
            name = "computation or loading"
        times = f"{seconds_text(self.seconds)} per step, the others {seconds_text(self.others)}"
        waits = f"; they wait {percent(self.waiting)} of their time" if self.waiting >= 0.1 else ""
        return f"worker {self.rank} is slower than the others in {name}: {times}{waits}. {advice(self.phase)}"


def advice(phase: int) -> str:
    if phase == LOADING:
        return "Check its disk and the size of its shard, or load ahead (platoon_base.data.load_ahead)"
    if phase == SYNC:
        return "Check the cores and the memory that it shares with other processes"
    return "Check its device, other processes there, and what the script does on this rank only"


def seconds_text(seconds: float) -> str:
    """Format seconds to two or three digits: ``"0.21 ms"``, ``"210 ms"``, ``"3.1 s"``."""
    if seconds >= 99.5:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def find_straggler(
    seconds: Mapping[int, tuple[float, ...]], loading_known: Mapping[int, bool], waiting: Mapping[int, float]
) -> Straggler | None:
    """Return the worker with at least twice the others' median own time per step, if any."""
    if len(seconds) < 2:
        return None
    own = {rank: sum(each[phase] for phase in _OWN) for rank, each in seconds.items()}
    slowest = max(own, key=lambda rank: own[rank])
    others = [rank for rank in seconds if rank != slowest]
    usual = median(own[rank] for rank in others)
    if own[slowest] < max(_TIMES_AS_LONG * usual, usual + _LEAST_S):
        return None
    more = {each: seconds[slowest][each] - median(seconds[rank][each] for rank in others) for each in _OWN}
    phase = max(more, key=lambda each: more[each])
    return Straggler(
        slowest,
        phase,
        seconds[slowest][phase],
        median(seconds[rank][phase] for rank in others),
        median(waiting.get(rank, 0.0) for rank in others),
        loading_known[slowest],
    )


class _Sample(NamedTuple):
    progress: Progress
    times: PhaseTimes


def _goes_on(old: _Sample, new: _Sample) -> bool:
    return same_process(old.progress, new.progress) and new.progress.steps >= old.progress.steps


class StragglerWatch:
    """Finds once a worker and phase that are slow in two consecutive windows of 2 s."""

    def __init__(self) -> None:
        self._samples: dict[int, _Sample] = {}
        self._began = -math.inf
        self._before: tuple[int, int] | None = None
        self._reported: set[tuple[int, int]] = set()

    def take(self, snapshot: Snapshot, now: float) -> Straggler | None:
        """Add a snapshot; return a straggler that has just been found."""
        here = [each.rank for each in snapshot.participants if not each.phase.gone]
        samples = {}
        for rank in here:
            progress, times = snapshot.progress[rank], snapshot.phases.get(rank)
            if times is not None and sum(times.seconds) > 0:
                samples[rank] = _Sample(progress, times)
        if any(rank not in samples or not _goes_on(old, samples[rank]) for rank, old in self._samples.items()):
            self._begin(samples, now)  # A worker left or was restarted.
        if len(samples) < max(2, len(here)) or len(self._samples) < len(samples):
            self._begin(samples, now)  # A worker is compiling.
            return None
        steps = [new.progress.steps - self._samples[rank].progress.steps for rank, new in samples.items()]
        if now - self._began < _WINDOW_S or min(steps) < _LEAST_STEPS:
            return None
        found = self._compare(samples)
        self._samples, self._began = samples, now
        key = None if found is None else (found.rank, found.phase)
        before, self._before = self._before, key
        if key is None or key != before or key in self._reported:
            return None
        self._reported.add(key)
        return found

    def _begin(self, samples: dict[int, _Sample], now: float) -> None:
        self._samples, self._began = samples, now
        self._before = None

    def _compare(self, samples: Mapping[int, _Sample]) -> Straggler | None:
        per_step, waiting = {}, {}
        for rank, new in samples.items():
            old = self._samples[rank]
            spent = [max(0.0, a - b) for a, b in zip(new.times.seconds, old.times.seconds)]
            steps = new.progress.steps - old.progress.steps
            counts = new.times.counts.astype(np.int64) - old.times.counts
            per_step[rank] = tuple(
                _without_longest(seconds, counts[0] if phase == COMPUTE else None, steps)
                for phase, seconds in enumerate(spent)
            )
            waiting[rank] = (spent[WAITING] + spent[COLLECTIVE]) / (sum(spent) or 1.0)
        return find_straggler(
            per_step, {rank: new.times.seconds[LOADING] > 0 for rank, new in samples.items()}, waiting
        )


def _without_longest(seconds: float, counts: Any, steps: int) -> float:
    """Return the mean time of a step, without the longest one, which may save or compile."""
    if counts is None or counts.sum() < _LEAST_STEPS:
        return seconds / steps
    longest = int(np.flatnonzero(counts)[-1])
    length = float(edges()[min(longest, BINS - 2)]) * 2**-0.25
    return max(0.0, seconds - length) / (steps - 1)
