"""What follows a job: observers get its snapshots, and at its end the result."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from platoon_base.cli.recent import Recent
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError
from platoon_base.shm.phases import PHASES
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Something that follows a job, such as its screen; an error ends it, but not the job.

    `close` is called once, after an error too; ``result`` is None if the job was not run to its
    end. A method ``poll()``, if there is one, is called several times a second.
    """

    name: str  # Shown in warnings.
    opening: str  # A line to print before the job; may be empty.

    @property
    def limit_s(self) -> float | None:
        """Seconds that its end may take; None for no limit."""

    def take(self, snapshot: Snapshot) -> None: ...

    def close(self, result: Result | None = None) -> None: ...


class Observed(NamedTuple):
    """The job that observers follow."""

    script: str
    command: str
    folder: Path  # Its logs are here.
    story: Story
    settings: Mapping[str, float | str] = MappingProxyType({})  # Hyperparameters known at the start.


class Option(NamedTuple):
    """An option of `platoon launch`, and how its value makes an observer."""

    option: Callable[[Any], Any]
    parameter: str
    make: Callable[[Any, Observed], Observer]


_POLL_INTERVAL_S = 0.2


class Observers:
    """Passes snapshots to observers, each in a thread of its own; a context manager.

    A disk or a server may block an observer. Set `result` before the end of the ``with`` block.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._threads = [_Thread(observer) for observer in observers]
        self.result: Result | None = None

    def __enter__(self) -> Observers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in self._threads:
            each.end(self.result)

    def take(self, snapshot: Snapshot) -> None:
        # A running job changes its participants.
        participants = [copy.copy(participant) for participant in snapshot.participants]
        latest = snapshot._replace(participants=participants, reported=dict(snapshot.reported))
        for each in self._threads:
            each.take(latest)


class _Thread(threading.Thread):
    """Calls one observer with the latest snapshot, and at the end with the result."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(name=f"observer {observer.name}", daemon=True)
        self._observer = observer
        self._latest: Snapshot | None = None
        self._is_new, self._ended, self._failed = threading.Event(), False, False
        self._result: Result | None = None

    def take(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self._is_new.set()

    def end(self, result: Result | None) -> None:
        self._result, self._ended = result, True
        self._is_new.set()
        limit_s = self._observer.limit_s
        self.join(limit_s)
        if self.is_alive():
            log.warning("%s has not ended within %g s; the job ends without it", self._observer.name, limit_s)

    def run(self) -> None:
        ended, taken = False, None
        poll: Callable[[], None] | None = getattr(self._observer, "poll", None)
        while not ended:
            self._is_new.wait(None if poll is None else _POLL_INTERVAL_S)
            self._is_new.clear()
            ended, latest = self._ended, self._latest
            if latest is not taken and not self._failed:
                self._guarded(self._observer.take, latest)
            taken = latest
            if poll is not None and not self._failed:
                self._guarded(poll)
        self._guarded(self._observer.close, self._result)

    def _guarded(self, call: Callable[..., None], *values: Any) -> None:
        try:
            call(*values)
        except (Exception, SystemExit) as exc:
            if not self._failed:  # The end of an observer that has failed may fail too.
                self._failed = True
                what = (self._observer.name, type(exc).__name__, exc)
                is_bug = not isinstance(exc, OSError)  # A full disk is not a bug.
                log.warning("stopped writing for %s: %s: %s", *what, exc_info=is_bug)


EVERY_S = 2.0


class Tracker(Protocol):
    """A run of an experiment tracker; all calls come from one thread, and an error ends it.

    ``Tracker(name, folder)`` begins a run with the name of the script. ``folder`` has the logs of
    the job. Classes of users need neither `needs` nor `place`.
    """

    needs: tuple[str, str]  # The package, and the line that installs it.
    place: str  # Where the run is shown, such as an address; may be empty.

    def __init__(self, name: str, folder: Path) -> None: ...

    def configure(self, settings: Mapping[str, float | str]) -> None:
        """Record hyperparameters; called at the start, and again when the workers know more."""

    def log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        """Record finite numbers of a worker, or of the whole job (None)."""

    def close(self, succeeded: bool) -> None: ...


def name_of_worker(name: str, worker: int | None) -> str:
    """Return ``worker0/loss``, or ``system/worker0/cpu_percent``, for trackers with one list of names."""
    group, slash, last = name.rpartition("/")
    return name if worker is None else f"{group}{slash}worker{worker}/{last}"


class TrackedRun:
    """An observer that writes snapshots to a tracker.

    Reported values are logged over the largest number of mini-batches of a worker: a mean would
    fall when a worker joins or is restarted.
    """

    def __init__(self, name: str, make: Callable[[str, Path], Any], job: Observed, every_s: float = EVERY_S) -> None:
        self.name = name
        self.limit_s = timeout("tracker")
        self._every_s, self._next = every_s, 0.0
        self._recent = Recent()
        self._steps: dict[int, int] = {}
        self._logged: dict[str, float | str] = {}
        self._settings = job.settings
        self._configured: dict[str, float | str] = {}
        self._tracker = self._begin(make, job)
        place = getattr(self._tracker, "place", "")
        self.opening = f"{name}: {place}" if place else ""

    def _begin(self, make: Callable[[str, Path], Any], job: Observed) -> Any:
        """Begin the run, in a thread because a server may not answer."""
        begun: list[Any] = []

        def begin() -> None:
            try:
                begun.append(make(job.script, job.folder))
            except (Exception, SystemExit) as exc:
                begun.append(exc)

        thread = threading.Thread(target=begin, daemon=True)
        thread.start()
        thread.join(self.limit_s)
        if not begun:
            raise ConfigurationError(
                f"--tracker {self.name} has not begun a run within {self.limit_s:g} s: check its server, "
                "or pass a larger --timeout tracker=SECONDS"
            )
        if isinstance(begun[0], BaseException):
            raise ConfigurationError(
                f"--tracker {self.name} cannot begin a run: {type(begun[0]).__name__}: {begun[0]}"
            ) from begun[0]
        return begun[0]

    def take(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        self._recent.take(snapshot, now)
        self._configure({**self._settings, **snapshot.settings})
        if now >= self._next:
            self._next = now + self._every_s
            self._log_workers(snapshot)
        self._log_job(snapshot)

    def close(self, result: Result | None = None) -> None:
        try:
            if self._recent.taken:
                self._log_workers(self._recent.snapshot)
        finally:
            self._tracker.close(result is not None and result.status == 0)

    def _configure(self, settings: Mapping[str, float | str]) -> None:
        if new := _changed(settings, self._configured):
            self._configured.update(new)
            self._tracker.configure(new)

    def _log_workers(self, snapshot: Snapshot) -> None:
        for rank, progress in snapshot.progress.items():
            if progress.steps == self._steps.get(rank, 0):
                continue
            self._steps[rank] = progress.steps
            values = {
                "loss": progress.loss,
                "epoch": float(progress.epoch),
                "batches_per_second": self._recent.rate(rank),
                "share_of_synchronization": self._recent.sync_share(rank),
            }
            if progress.memory_bytes:
                values["system/cpu_percent"] = progress.cpu_percent
                values["system/memory_mb"] = progress.memory_bytes / 1e6
            if rank in snapshot.phases:
                values.update(zip((f"{phase}_seconds" for phase in PHASES), snapshot.phases[rank].seconds))
            self._log(values, progress.steps, rank)

    def _log_job(self, snapshot: Snapshot) -> None:
        counts = {
            "workers": len(snapshot.here),
            "failures": len(snapshot.failed),
            "checkpoints": snapshot.saved_checkpoints,
        }
        values = {**snapshot.reported, **counts}
        step = max((progress.steps for progress in snapshot.progress.values()), default=0)
        new = _changed(values, self._logged)
        self._logged.update(new)
        self._log({name: value for name, value in new.items() if isinstance(value, (int, float))}, step, None)

    def _log(self, values: Mapping[str, float], step: int, worker: int | None) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if finite:
            self._tracker.log(finite, step, worker)


def _changed(new: Mapping[str, float | str], old: Mapping[str, float | str]) -> dict[str, float | str]:
    return {name: value for name, value in new.items() if old.get(name) != value}
