"""The latest seconds of a running job: rates, waits, and the time that is left, from one snapshot after the other."""

from __future__ import annotations

import math
from collections import deque

from platoon_base.controller.controller import Snapshot
from platoon_base.shm.job_state import Progress

__all__ = ["Recent"]

_WINDOW_S = 10.0
_WAITS_S = 3.0  # a shorter wait is part of training
_FRESH_S = 2.0  # a wait for arrays that was seen later than this is over


class _Course:
    """The latest steps of one worker."""

    def __init__(self) -> None:
        self.points: deque[Progress] = deque()
        self.waits, self.waits_since = -1, 0.0
        self.longest_pause_s = 0.0  # such as a validation

    def take(self, progress: Progress, now: float) -> None:
        points = self.points
        if points and (progress.steps < points[-1].steps or progress.started != points[-1].started):
            points.clear()  # another process of this rank
        if points and progress.steps > points[-1].steps:
            self.longest_pause_s = max(self.longest_pause_s, progress.updated - points[-1].updated)
        if progress.started and (not points or progress.steps > points[-1].steps):
            points.append(progress)
        while len(points) > 2 and points[1].updated <= points[-1].updated - _WINDOW_S:
            points.popleft()
        if progress.waits != self.waits:
            first = self.waits < 0  # then it may have begun any time since the latest step
            self.waits, self.waits_since = progress.waits, progress.updated if first and progress.updated else now

    def before(self, last: Progress) -> tuple[float, float, int]:
        """Return time, seconds of synchronization and steps at the begin of the latest seconds."""
        first = self.points[0]
        if first is last or first.updated == last.updated:
            return first.started, 0.0, first.steps_before_start
        return first.updated, first.sync_seconds, first.steps


class Recent:
    """Takes snapshots in as they come; `platoon_base.cli.table` draws what follows from them.

    Attributes
    ----------
    snapshot : Snapshot or None
        The latest.
    now : float
        When it was taken, in seconds of the machine's monotonic clock.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.now = 0.0
        self._courses: dict[int, _Course] = {}

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Take a snapshot in."""
        self.snapshot, self.now = snapshot, now
        for rank, progress in snapshot.progress.items():
            self._courses.setdefault(rank, _Course()).take(progress, now)

    def rate(self, rank: int) -> float:
        """Mini-batches per second in the latest seconds: 0 if there were none though one was due, NaN before any."""
        last, course = self._last(rank)
        if last is None:
            return math.nan
        began, _, steps = course.before(last)
        seconds = last.updated - began
        if seconds <= 0 or last.steps <= steps:
            return math.nan
        rate = (last.steps - steps) / seconds
        return rate if self.now - last.updated <= _WINDOW_S + 3 / rate else 0.0

    def sync_share(self, rank: int) -> float:
        """Part of the latest seconds that was spent in synchronization; NaN before the first step."""
        last, course = self._last(rank)
        if last is None:
            return math.nan
        began, spent, _ = course.before(last)
        seconds = last.updated - began
        return (last.sync_seconds - spent) / seconds if seconds > 0 else math.nan

    def waiting(self, rank: int) -> bool:
        """Whether a worker has been in one collective call for seconds."""
        course = self._courses[rank]
        if course.waits % 2 == 1 and self.now - course.waits_since >= _WAITS_S:
            return True
        progress = self._progress(rank)
        return self.now - progress.waited_at < _FRESH_S and self.now - progress.updated >= _WAITS_S

    def stalled_s(self, rank: int) -> float:
        """Return for how long a worker that trains has made no step; 0 where one is not overdue, or it waits."""
        progress = self._progress(rank)
        made = progress.steps - progress.steps_before_start
        if made <= 0 or self.waiting(rank):
            return 0.0
        seconds = self.now - progress.updated
        usual = (progress.updated - progress.started) / made
        overdue = seconds > max(_WINDOW_S + 3 * usual, 2 * self._courses[rank].longest_pause_s)
        return seconds if overdue else 0.0

    def _progress(self, rank: int) -> Progress:
        progress = {} if self.snapshot is None else self.snapshot.progress
        return progress[rank]

    def total_rate(self) -> float:
        """The sum of the rates of all workers that take part; NaN if none has one."""
        snapshot = self.snapshot
        if snapshot is None:
            return math.nan
        here = [each.rank for each in snapshot.participants if not each.phase.gone]
        rates = [rate for rank in here if not math.isnan(rate := self.rate(rank))]
        return sum(rates) if rates else math.nan

    def seconds_left(self) -> float:
        """Estimate how long the slowest worker has to train yet: NaN if its limits are not known.

        ::

            left := (last step - steps) * seconds since its first step / steps since then

        Pauses, such as validations, count, which is why these are not the latest seconds.
        """
        if self.snapshot is None:
            return math.nan
        here = [each.rank for each in self.snapshot.participants if not each.phase.gone]
        if any(self.stalled_s(rank) for rank in here):  # nobody knows
            return math.nan
        left = [self._left(self.snapshot.progress[rank]) for rank in here]
        known = [each for each in left if not math.isnan(each)]
        return max(known) if known else math.nan

    def _left(self, progress: Progress) -> float:
        made = progress.steps - progress.steps_before_start
        steps = steps_left(progress)
        if made <= 0 or math.isnan(steps):
            return math.nan
        return max(0.0, steps * (progress.updated - progress.started) / made - (self.now - progress.updated))

    def _last(self, rank: int) -> tuple[Progress | None, _Course]:
        course = self._courses[rank]
        return (course.points[-1] if course.points else None), course


def steps_left(progress: Progress) -> float:
    """Return the number of steps up to the nearest limit that is known; NaN if there is none."""
    left = []
    if progress.last_step:
        left.append(progress.last_step - progress.steps)
    if progress.last_epoch and progress.epoch_steps:
        in_epoch = progress.steps - progress.steps_before_epoch
        left.append((progress.last_epoch - progress.epoch + 1) * progress.epoch_steps - in_epoch)
    return float(max(0, min(left))) if left else math.nan
