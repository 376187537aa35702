"""The course of a job in memory, from its snapshots, of a bounded size; the straggler in it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from platoon_base.cli.recent import same_process
from platoon_base.cli.table import duration
from platoon_base.controller.outcome import Snapshot
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import (
    BINS,
    COLLECTIVE,
    COMPUTE,
    LOADING,
    PARTS,
    SYNC,
    VALIDATION,
    WAITING,
    PhaseTimes,
    edges,
)

_WINDOW_S = 2.0
_LEAST_STEPS = 3  # Each worker must make this many in a window.
_TIMES_AS_LONG, _LEAST_S = 2.0, 0.005  # Times of steps vary by less.
# A worker's own time: waits and collective calls depend on others.
_OWN = (COMPUTE, SYNC, LOADING)
PHASE_NAMES = {COMPUTE: "computation", SYNC: "synchronization with the center", LOADING: "loading"}


class Straggler(NamedTuple):
    rank: int
    phase: int  # The phase in which it loses most time.
    seconds: float  # Seconds per step in this phase.
    others: float  # Median of the others' seconds per step in this phase.
    waiting: float  # The others' share of time in waits and collective calls.
    loading_known: bool  # If not, loading is a part of the computation.

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
        here = [each.rank for each in snapshot.here]
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


_MOST_POINTS = 1200  # If a worker has more points, every second one is dropped.
_MOST_VALUES, _MOST_NAMES = 1200, 64
_LEAST_RATE_S = 0.5
_SPLIT_STEPS, _SPLIT_S = 20, 10.0  # These suffice to separate waits from the exchange in collective calls.
SHOWN = ("compute", "synchronization", "waiting", "loading", "validation")


class Shares(NamedTuple):
    """The seconds of one worker by phase."""

    compute: float = 0.0  # It includes the loading of data if the loop does not tell when it loads.
    # Exchange with the center, and collective calls on arrays without the wait for the slowest worker.
    synchronization: float = 0.0
    waiting: float = 0.0  # Waits for other workers.
    loading: float = 0.0
    validation: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    def plus(self, other: Shares) -> Shares:
        return Shares(*(a + b for a, b in zip(self, other)))


class Point(NamedTuple):
    """One worker at one moment; ``at`` is in seconds since the start of the recorder."""

    at: float
    epoch: int
    steps: int
    loss: float
    shares: Shares


class Value(NamedTuple):
    """A reported value, and the mean of the workers' steps at that time."""

    at: float
    steps: float
    value: float


class Lane:
    """The course of one rank, over all its processes; ``steps`` include those that were made twice."""

    def __init__(self, rank: int, device: str) -> None:
        self.rank, self.device = rank, device
        self.points: list[Point] = []
        self.shares = Shares()
        self.counts: Any = np.zeros((len(PARTS), BINS), np.int64)  # See `PhaseTimes`.
        self.steps = 0
        self.first: Progress | None = None
        self.pending, self.pending_steps = 0.0, 0  # Collective calls that are not split yet.
        self.calls_collectives = self.gone = False
        self._latest: tuple[Progress, PhaseTimes] | None = None

    def take(self, progress: Progress, times: PhaseTimes | None, gone: bool) -> None:
        self.gone = gone
        times = times or PhaseTimes((0.0,) * 6, np.zeros((len(PARTS), BINS), np.int64))
        before = self._latest
        anew = before is None or not same_process(before[0], progress) or sum(times.seconds) < sum(before[1].seconds)
        done = progress.steps - (progress.steps_before_start if anew else before[0].steps)  # type: ignore[index]
        old = (0.0,) * 6 if anew else before[1].seconds  # type: ignore[index]
        new = [max(0.0, a - b) for a, b in zip(times.seconds, old)]
        self.counts += times.counts if anew else times.counts - before[1].counts.astype(np.int64)  # type: ignore[index]
        self.shares = self.shares.plus(Shares(new[COMPUTE], new[SYNC], new[WAITING], new[LOADING], new[VALIDATION]))
        if progress.started:
            self.first = self.first or progress
            self.steps += max(0, done)
            self.pending_steps += max(0, done)
        self.pending += new[COLLECTIVE]
        self.calls_collectives = self.calls_collectives or self.pending > 0
        self._latest = progress, times

    def split(self, exchange_s: float) -> None:
        """Count ``exchange_s`` of the pending collective calls as synchronization, and the rest as waiting."""
        exchange_s = min(exchange_s, self.pending)
        self.shares = self.shares.plus(Shares(synchronization=exchange_s, waiting=self.pending - exchange_s))
        self.pending, self.pending_steps = 0.0, 0

    def add_point(self, at: float, progress: Progress) -> None:
        shares = self.shares.plus(Shares(synchronization=self.pending))
        point = Point(at, progress.epoch, progress.steps, progress.loss, shares)
        if not self.points or point[1:] != self.points[-1][1:]:
            self.points.append(point)

    @property
    def has_loading(self) -> bool:
        return self.shares.loading > 0


class RunRecorder:
    """Records snapshots of a job; `platoon_base.cli.trackers.report` draws them.

    In collective calls on arrays all workers wait for the slowest one. They leave together, so the
    exchange took as long as the shortest of their calls, and the rest of the others' calls was
    waiting. All times are in seconds since the start, ``began_at`` since the epoch.
    """

    def __init__(self) -> None:
        self.began_at, self.start = time.time(), time.monotonic()
        self.lanes: dict[int, Lane] = {}
        self.values: dict[str, list[Value]] = {}
        self.checkpoints: list[float] = []
        self.snapshot: Snapshot | None = None
        self.seconds = 0.0
        self._next_point, self._interval_s = 0.0, 0.0
        self._split_at = 0.0
        self._saved = 0

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Add a snapshot; ``now`` is in seconds of the monotonic clock."""
        at = self.seconds = now - self.start
        self.snapshot = snapshot
        for each in snapshot.participants:
            lane = self.lanes.setdefault(each.rank, Lane(each.rank, each.device))
            lane.device = each.device or lane.device
            lane.take(snapshot.progress[each.rank], snapshot.phases.get(each.rank), each.phase.gone)
        self._split_collectives(at)
        self._take_values(snapshot.reported, at)
        if snapshot.saved_checkpoints > self._saved:
            self.checkpoints = _halved([*self.checkpoints, at], _MOST_VALUES)
        self._saved = snapshot.saved_checkpoints  # After a restart of all workers the count starts anew.
        if at >= self._next_point:
            self._add_points(at)

    def end(self) -> None:
        self._split_collectives(self.seconds, last=True)
        self._add_points(self.seconds)

    def _add_points(self, at: float) -> None:
        if self.snapshot is None:
            return
        self._next_point = at + self._interval_s
        for rank, progress in self.snapshot.progress.items():
            if progress.started:
                self.lanes[rank].add_point(at, progress)
        if max((len(lane.points) for lane in self.lanes.values()), default=0) > _MOST_POINTS:
            self._interval_s = max(2 * self._interval_s, 2 * at / _MOST_POINTS)
            for lane in self.lanes.values():
                lane.points = [*lane.points[:-1:2], lane.points[-1]] if lane.points else []

    def _split_collectives(self, at: float, last: bool = False) -> None:
        """Tell waits from the exchange once all workers have made enough calls since the last time."""
        calling = [lane for lane in self.lanes.values() if lane.calls_collectives and (lane.pending or not lane.gone)]
        if not calling:
            return
        complete = all(lane.pending > 0 and lane.pending_steps >= _SPLIT_STEPS for lane in calling)
        if not (complete or last or (at - self._split_at >= _SPLIT_S and all(lane.pending > 0 for lane in calling))):
            return
        self._split_at = at
        # Per step, since one worker may be a step ahead when the snapshot is taken.
        per_step = min((lane.pending / max(1, lane.pending_steps) for lane in calling if lane.pending), default=0.0)
        for lane in calling:
            lane.split(per_step * max(1, lane.pending_steps))

    def _take_values(self, reported: Mapping[str, float | str], at: float) -> None:
        steps = [lane.steps for lane in self.lanes.values()]
        mean = sum(steps) / max(1, len(steps))
        for name, value in reported.items():
            if isinstance(value, str) or not (name in self.values or len(self.values) < _MOST_NAMES):
                continue
            known = self.values.setdefault(name, [])
            if not known or known[-1].value != value:
                self.values[name] = _halved([*known, Value(at, mean, float(value))], _MOST_VALUES)


def _halved(items: list[Any], most: int) -> list[Any]:
    """Return the items, without every second one if there are too many; the last one stays."""
    return items if len(items) <= most else [*items[:-1:2], items[-1]]


def rates(lane: Lane) -> list[tuple[float, float]]:
    """Return the mini-batches per second between the points of a worker, each with the moment of its end."""
    found, before = [], lane.points[0] if lane.points else None
    for point in lane.points:
        if before is not None and point.at - before.at >= _LEAST_RATE_S:
            if point.steps >= before.steps:  # A restarted worker may go back.
                found.append((point.at, (point.steps - before.steps) / (point.at - before.at)))
            before = point
    return found
