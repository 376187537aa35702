"""Statistics of a running job: recent rates and waits, the remaining time, the course of values."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence

from platoon_base.controller.outcome import Snapshot
from platoon_base.shm.job_state import Progress

_HIGHER = re.compile(r"acc|auc|precision|recall|f1|score|bleu|r2|psnr", re.IGNORECASE)
_VALIDATION = {"val", "valid", "validation", "validate", "test", "testing", "dev", "eval", "evaluation", "heldout"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # So valLoss has two words.
_LOSS = re.compile(r"loss|cost|error|nll|perplexity|mse|mae", re.IGNORECASE)


def is_validation(name: str) -> bool:
    """Return whether a value seems to be measured on data that is not trained on."""
    return any(word.lower() in _VALIDATION for word in _WORD.findall(name))


def is_loss(name: str) -> bool:
    """Return whether a value seems to be a loss or an error, so that lower is better."""
    return bool(_LOSS.search(name))


def higher_is_better(name: str) -> bool:
    """Return whether a value seems to be an accuracy or a score; an unknown name counts as a loss."""
    return bool(_HIGHER.search(name)) and not is_loss(name)


def direction(name: str) -> int:
    """Return 1 if higher is better, -1 if lower is, and 0 if the name does not say."""
    return -1 if is_loss(name) else 1 if higher_is_better(name) else 0


BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.,-+=*#"
_KEPT = 64


class Course:
    """The values of one quantity, at most 64 at equal distances; neighbours are averaged."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._each, self._sum, self._count = 1, 0.0, 0

    def add(self, value: float) -> None:
        # NaN and infinities are skipped.
        if not math.isfinite(value):
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._each:
            return
        self.values.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.values) >= _KEPT:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2])]
            self._each *= 2


class Track:
    """The history of a reported number, and its best value."""

    def __init__(self, name: str) -> None:
        self.course = Course()
        self.best, self.best_epoch = math.nan, 0  # NaN: no direction is known; 0: no epoch is known
        self._direction = direction(name)
        self._latest: tuple[float, int] | None = None

    def take(self, value: float, epoch: int) -> None:
        """Add a value, unless it repeats the latest one."""
        if (value, epoch) == self._latest:
            return
        self._latest = value, epoch
        self.course.add(value)
        better = math.isnan(self.best) or self._direction * (value - self.best) > 0
        if self._direction and math.isfinite(value) and better:
            self.best, self.best_epoch = value, epoch


def sparkline(values: Sequence[float], width: int, low: float | None = None, plain: bool = False) -> str:
    """Draw finite values as bars; ``low`` is the value of the lowest bar, by default the least."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]
    least, most = min(values) if low is None else low, max(values)
    bars = _ASCII if plain else BLOCKS
    scale = (len(bars) - 1) / (most - least) if most > least else 0.0
    # The position is not finite if values are too large or too close.
    return "".join([bars[int(at + 0.5)] if 0 <= (at := (each - least) * scale) <= 7 else bars[0] for each in values])


_WINDOW_S = 10.0
_MIN_S = 1.0  # Rates over shorter windows are not reliable.
_MIN_TO_ESTIMATE_S = 3.0
_WAITS_S = 3.0  # A shorter wait is part of training.
_CORRECTION_S = 1.0  # Another host's clock may be corrected by this much.
# A wait for arrays that was not observed for this long is over.
_FRESH_S = 2.0
TREND_POINTS, _TREND_EVERY_S = 8, 3.0  # Points of a worker's rate, and their distance.


class _Course:
    """The latest steps of one worker, without the first ones, in which frameworks compile."""

    def __init__(self, seen_late: bool) -> None:
        self._seen_late = seen_late  # Whether steps were made before the first snapshot.
        self.first: Progress | None = None
        self.points: deque[Progress] = deque()
        self.waits, self.waits_since = -1, 0.0
        self.longest_pause_s = 0.0  # A validation is such a pause.
        self.rates: deque[float] = deque(maxlen=TREND_POINTS)

    def take(self, progress: Progress, now: float) -> None:
        points = self.points
        if points and (progress.steps < points[-1].steps or not same_process(progress, points[-1])):
            points.clear()  # The rank was restarted.
            self.first, self._seen_late = None, False
        if points and progress.steps > points[-1].steps:
            self.longest_pause_s = max(self.longest_pause_s, progress.updated - points[-1].updated)
        if _made(progress) > 0 and (not points or progress.steps > points[-1].steps):
            points.append(progress)
            self.first = self.first or progress
        while len(points) > 2 and points[1].updated <= points[-1].updated - _WINDOW_S:
            points.popleft()
        if progress.waits != self.waits:
            first = self.waits < 0  # The wait may have started at the latest step.
            self.waits, self.waits_since = progress.waits, progress.updated if first and progress.updated else now

    def since(self, first: Progress | None, least_s: float) -> tuple[float, float, int] | None:
        """Return seconds, seconds of synchronization and steps since a point; None if too short."""
        if first is None:
            return None
        last = self.points[-1]
        seconds, synced, steps = last.updated - first.updated, last.sync_seconds - first.sync_seconds, last.steps
        if seconds > 0:
            steps -= first.steps
        elif self._seen_late:  # The window is empty: use the whole run.
            seconds, synced, steps = last.updated - last.started, last.sync_seconds, _made(last)
        return (seconds, synced, steps) if seconds >= least_s and steps > 0 else None


def _made(progress: Progress) -> int:
    """Return how many steps this process has made."""
    return progress.steps - progress.steps_before_start if progress.started else 0


def same_process(one: Progress, other: Progress) -> bool:
    """Return whether two rows of a rank are of one process, despite corrected clocks of hosts."""
    corrected = abs(one.started - other.started) < _CORRECTION_S
    return one.steps_before_start == other.steps_before_start and corrected


class Recent:
    """Computes statistics from snapshots; `platoon_base.cli.table` shows them."""

    def __init__(self) -> None:
        self.snapshot = Snapshot([], {}, {}, None, 0.0)
        self.taken = False  # Whether there was a snapshot.
        self.now = 0.0  # Monotonic time of the snapshot, in seconds.
        self.tracks: dict[str, Track] = {}  # Reported numbers over the whole job.
        self.loss = Course()  # Mean of the workers' losses.
        self._steps = 0  # Steps of all workers at the latest `loss`.
        self._is_first = True
        self._courses: dict[int, _Course] = {}
        self._next_trend = 0.0

    def take(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot, self.now, self.taken = snapshot, now, True
        for rank, progress in snapshot.progress.items():
            course = self._courses.get(rank)
            if course is None:
                course = self._courses[rank] = _Course(seen_late=self._is_first and _made(progress) > 0)
            course.take(progress, now)
        self._is_first = False
        self._keep_history(snapshot, now)

    def _keep_history(self, snapshot: Snapshot, now: float) -> None:
        for name, value in snapshot.reported.items():
            if isinstance(value, (int, float)):
                track = self.tracks.get(name) or self.tracks.setdefault(name, Track(name))
                track.take(float(value), snapshot.reported_in.get(name, 0))
        here = [each.rank for each in snapshot.here]
        losses = [loss for rank in here if not math.isnan(loss := snapshot.progress[rank].loss)]
        steps = sum(snapshot.progress[rank].steps for rank in here)
        if losses and steps != self._steps:
            self._steps = steps
            self.loss.add(sum(losses) / len(losses))
        if now >= self._next_trend:
            self._next_trend = now + _TREND_EVERY_S
            for rank in here:
                if not math.isnan(rate := self.rate(rank)):
                    self._courses[rank].rates.append(rate)

    def trend(self, rank: int) -> Sequence[float]:
        return list(self._courses[rank].rates)

    def rate(self, rank: int) -> float:
        """Return recent mini-batches per second; 0 if one is overdue, NaN in the first second."""
        points = self._courses[rank].points
        window = self._window(rank)
        if window is None:
            return math.nan
        seconds, _, steps = window
        rate = steps / seconds
        return rate if self.now - points[-1].updated <= _WINDOW_S + 3 / rate else 0.0

    def sync_share(self, rank: int) -> float:
        """Return the fraction of recent time spent in synchronization; NaN if not known."""
        window = self._window(rank)
        return math.nan if window is None else window[1] / window[0]

    def _window(self, rank: int) -> tuple[float, float, int] | None:
        course = self._courses[rank]
        return course.since(course.points[0] if course.points else None, _MIN_S)

    def waiting(self, rank: int) -> bool:
        """Return whether a worker has been in one collective call for seconds."""
        course = self._courses[rank]
        if course.waits % 2 == 1 and self.now - course.waits_since >= _WAITS_S:
            return True
        progress = self.snapshot.progress[rank]
        return self.now - progress.waited_at < _FRESH_S and self.now - progress.updated >= _WAITS_S

    def idle_s(self, rank: int) -> float:
        """Return the seconds since a worker's latest step; NaN before its first one."""
        progress = self.snapshot.progress[rank]
        return max(0.0, self.now - progress.updated) if _made(progress) > 0 else math.nan

    def stalled_s(self, rank: int) -> float:
        """Return for how long an overdue step has been missing; 0 if none is, or in a wait."""
        progress = self.snapshot.progress[rank]
        made = _made(progress)
        if made <= 0 or self.waiting(rank):
            return 0.0
        seconds = self.now - progress.updated
        usual = (progress.updated - progress.started) / made
        overdue = seconds > max(_WINDOW_S + 3 * usual, 2 * self._courses[rank].longest_pause_s)
        return seconds if overdue else 0.0

    def total_rate(self) -> float:
        rates = [rate for each in self.snapshot.here if not math.isnan(rate := self.rate(each.rank))]
        return sum(rates) if rates else math.nan

    def share_done(self) -> float:
        """Return the fraction of the job that its slowest worker has done; NaN if not known."""
        progress = self.snapshot.progress
        here = [progress[each.rank] for each in self.snapshot.here]
        ended = [progress[each.rank] for each in self.snapshot.participants if each.phase.left]
        return min((share for each in here or ended if not math.isnan(share := _share(each))), default=math.nan)

    def seconds_left(self) -> float:
        """Estimate the slowest worker's remaining time; NaN if not known."""
        here = [each.rank for each in self.snapshot.here]
        if any(self.stalled_s(rank) for rank in here):  # The remaining time is unknown then.
            return math.nan
        # The rates are those of the whole run: pauses, such as validations, count.
        left = [self._left(rank) for rank in here]
        known = [each for each in left if not math.isnan(each)]
        return max(known) if known else math.nan

    def _left(self, rank: int) -> float:
        course = self._courses[rank]
        window = course.since(course.first, _MIN_TO_ESTIMATE_S)
        if window is None:
            return math.nan
        last = course.points[-1]
        left = steps_left(last) * window[0] / window[2] - (self.now - last.updated)
        return left if left > 0 else math.nan  # It is not positive at the end, or if a step is overdue.


def _share(progress: Progress) -> float:
    """Return the share of its training that a worker has done, by the nearest limit, or NaN."""
    shares = [progress.steps / progress.last_step] if progress.last_step else []
    if progress.last_epoch:
        in_epoch = progress.steps - progress.steps_before_epoch
        part = in_epoch / progress.epoch_steps if progress.epoch_steps else 0.0
        shares.append((max(0, progress.epoch - 1) + part) / progress.last_epoch)
    return min(1.0, max(shares)) if shares else math.nan


def steps_left(progress: Progress) -> float:
    """Return the number of steps to the nearest known limit; NaN if there is none."""
    left = []
    if progress.last_step:
        left.append(progress.last_step - progress.steps)
    if progress.last_epoch and progress.epoch_steps:
        in_epoch = progress.steps - progress.steps_before_epoch
        left.append((progress.last_epoch - progress.epoch + 1) * progress.epoch_steps - in_epoch)
    return float(max(0, min(left))) if left else math.nan
