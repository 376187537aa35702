"""What follows a job: observers get its snapshots, and at its end the result."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Protocol

from platoon_base.controller.outcome import Result, Snapshot

__all__ = ["Observed", "Observer", "Observers", "Option"]

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Something that follows a job, such as its screen; an error ends it, but not the job.

    `close` is called once, after an error too; ``result`` is None if the job was not run to its
    end.
    """

    name: str  # for a warning
    opening: str  # a line to print before the job; may be empty

    @property
    def limit_s(self) -> float | None:
        """Seconds for its end; None for no limit."""

    def take(self, snapshot: Snapshot) -> None: ...

    def close(self, result: Result | None = None) -> None: ...


class Observed(NamedTuple):
    """The job that observers follow."""

    script: str
    command: str
    folder: Path  # of its logs
    settings: Mapping[str, float | str] = MappingProxyType({})  # what the job was started with


class Option(NamedTuple):
    """An option of `platoon launch`, and how its value makes an observer."""

    option: Callable[[Any], Any]
    parameter: str
    make: Callable[[Any, Observed], Observer]


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        while not ended:
            self._is_new.wait()
            self._is_new.clear()
            ended, latest = self._ended, self._latest
            if latest is not taken and not self._failed:
                self._guarded(self._observer.take, latest)
            taken = latest
        self._guarded(self._observer.close, self._result)

    def _guarded(self, call: Callable[[Any], None], value: Any) -> None:
        try:
            call(value)
        except Exception as exc:
            if not self._failed:  # One that failed before cannot end in order.
                self._failed = True
                what = (self._observer.name, type(exc).__name__, exc)
                is_bug = not isinstance(exc, OSError)  # A full disk is none.
                log.warning("stopped writing for %s: %s: %s", *what, exc_info=is_bug)
