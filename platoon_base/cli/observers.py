"""What follows a job: observers get its snapshots, and at its end the result."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from platoon_base.controller.outcome import Result, Snapshot

__all__ = ["Observed", "Observer", "Observers", "Tracker"]

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Something that follows a job, such as its screen; an error ends it, but not the job.

    `close` is called once, after an error too; ``result`` is None if the job was not run to its
    end.
    """

    name: str  # for a warning
    opening: str  # a line to print before the job; may be empty

    def take(self, snapshot: Snapshot) -> None: ...

    def close(self, result: Result | None = None) -> None: ...


class Observed(NamedTuple):
    """The job that observers follow."""

    script: str
    command: str
    folder: Path  # of its logs


class Tracker(NamedTuple):
    """An option of `platoon launch`, and how its value makes an observer."""

    option: Callable[[Any], Any]
    parameter: str
    make: Callable[[Any, Observed], Observer]


class Observers:
    """Passes snapshots to observers in a thread, as a disk may block them; a context manager.

    Set `result` before the end of the ``with`` block.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._failed: list[Observer] = []
        self._latest: Snapshot | None = None
        self._is_new, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="observers", daemon=True)
        self.result: Result | None = None

    def __enter__(self) -> Observers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._is_new.set()
        self._thread.join()
        for observer in self._observers:
            self._guarded(observer, observer.close, self.result)

    def take(self, snapshot: Snapshot) -> None:
        # A running job changes its participants.
        participants = [copy.copy(participant) for participant in snapshot.participants]
        self._latest = snapshot._replace(participants=participants, reported=dict(snapshot.reported))
        self._is_new.set()

    def _run(self) -> None:
        ended, taken = False, None
        while not ended:
            self._is_new.wait()
            self._is_new.clear()
            ended, latest = self._ended, self._latest
            for observer in self._observers:
                if latest is not None and latest is not taken and observer not in self._failed:
                    self._guarded(observer, observer.take, latest)
            taken = latest

    def _guarded(self, observer: Observer, call: Callable[[Any], None], value: Any) -> None:
        try:
            call(value)
        except Exception as exc:
            if observer not in self._failed:  # One that failed before cannot end in order.
                self._failed.append(observer)
                what = (observer.name, type(exc).__name__, exc)
                is_bug = not isinstance(exc, OSError)  # A full disk is none.
                log.warning("stopped writing for %s: %s: %s", *what, exc_info=is_bug)
