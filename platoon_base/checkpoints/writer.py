"""Writes the checkpoints of a running job in a thread of the controller."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from platoon_base.checkpoints.files import KEPT_FILES, About, Checkpoint, CheckpointFolder
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, LayoutMismatchError
from platoon_base.layout import Layout
from platoon_base.timeouts import POLL_S, timeout

log = logging.getLogger(__name__)

# These occur if workers have just released their parameters, or devices do not answer.
_SKIPPED_ERRORS = (ConfigurationError, LayoutMismatchError, CollectiveTimeoutError)


class Saving(NamedTuple):
    """Where checkpoints are written, and how often; only at the end if ``every_s`` is infinite."""

    folder: CheckpointFolder
    every_s: float


class Readable(Protocol):
    """A handle of a center for the controller, which saves it and takes no part in the training."""

    def snapshot(self, may_wait: bool) -> tuple[list[Array], list[list[Array]]]:
        """Copy the values and the rule's states.

        It raises `CollectiveTimeoutError` if a lock is not acquired; ``may_wait`` allows waiting.
        """
        ...

    def close(self) -> None: ...


class Tally(NamedTuple):
    """Numbers of checkpoints that were written and missed, and why the newest is outdated, if it is."""

    written: int = 0
    missed: int = 0
    unsaved: str = ""

    def after(self, earlier: Tally) -> Tally:
        return self._replace(written=earlier.written + self.written, missed=earlier.missed + self.missed)


class StallTimer:
    """Detects a stall: no progress for ``limit_s``."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._progress: int | None = None
        self._since = 0.0

    def over(self, now: float, progress: int) -> bool:
        if progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since > self._limit_s


def _fail(problem: Exception) -> Checkpoint:
    raise problem


class CheckpointWriter:
    """Writes checkpoints of the first center of a job, one at a time.

    The first one is due as soon as there is a center, so that a failure is known before the
    training begins. The handle of the center stays open: it can be read after its name is removed.
    """

    def __init__(self, saving: Saving, watch_center: Callable[[Layout], Readable], resumed: bool = False) -> None:
        self._saving = saving
        self._watch_center = watch_center
        self._center: Readable | None = None
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None
        self._saw_center = self._wrote_center = self._over = self._warned_of_second_job = False
        self._keeps_center = resumed
        self._stall_timer = StallTimer(timeout("checkpoint"))
        self._began_writing = 0  # Number of checkpoints begun.
        self.tally = Tally()
        self.next_due = time.monotonic() + saving.every_s

    def due(self, now: float, layout: Layout | None) -> bool:
        """Return whether a checkpoint is due: by the period, or because of a new center."""
        if layout is not None and not self._over:
            # A later read reports the error.
            with contextlib.suppress(OSError, *_SKIPPED_ERRORS):
                self._watch(layout)
        if self._over and layout is not None and not self._warned_of_second_job:
            self._warned_of_second_job = True
            log.warning("the checkpoint keeps the parameters that were shared first; those shared now are not saved")
        just_shared = layout is not None and not self._saw_center
        return not self._over and not self.writing and (now >= self.next_due or just_shared)

    def next_poll_at(self, now: float) -> float:
        if self.writing:
            return now + POLL_S
        return math.inf if self._over else self.next_due

    @property
    def folder(self) -> Path:
        return self._saving.folder.path

    @property
    def writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def keeps_center(self) -> bool:
        """Whether a checkpoint in the folder, or one that is being written, has a center."""
        return self._keeps_center

    def postpone(self, until: float) -> None:
        self.next_due = until

    def skip(self) -> None:
        """Wait for a whole period."""
        self.next_due = time.monotonic() + self._saving.every_s

    def begin(self, about: About, layout: Layout | None, at_once: bool = False) -> None:
        """Begin a checkpoint; with ``at_once`` the center is read before this call returns."""
        self.skip()
        # A checkpoint without a center must not replace one with a center.
        if self._over or (layout is None and self._keeps_center):
            return
        self._saw_center |= layout is not None
        self._keeps_center |= layout is not None
        if at_once:
            self._begin_now(about, layout)
        else:
            self._start(lambda: self._checkpoint(about, layout, may_wait=True))

    def end(self, about: About, layout: Layout) -> None:
        """Read the center now, since it will be released, and begin the last checkpoint."""
        if self._over:
            return
        self._over = self._keeps_center = True
        self._begin_now(about, layout, last=True)

    def _begin_now(self, about: About, layout: Layout | None, last: bool = False) -> None:
        try:
            checkpoint = self._checkpoint(about, layout, may_wait=False)
            self._start(lambda: checkpoint, last=last)
        except (OSError, *_SKIPPED_ERRORS) as exc:
            self._start(functools.partial(_fail, exc), last=last)  # The thread reports it.

    def _watch(self, layout: Layout) -> Readable:
        if self._center is None:
            self._center = self._watch_center(layout)
        return self._center

    def _checkpoint(self, about: About, layout: Layout | None, may_wait: bool) -> Checkpoint:
        if layout is None:
            return Checkpoint(about, [], [])
        return Checkpoint.of(about, layout, *self._watch(layout).snapshot(may_wait))

    def is_stalled(self, now: float) -> bool:
        return self.writing and self._stall_timer.over(now, self._began_writing + self._saving.folder.written_bytes)

    def give_up(self, why: str) -> None:
        """Count the checkpoint that is being written as missed; the job stops waiting for it."""
        if self.writing:
            self._count_missed(CollectiveTimeoutError(why))

    def take_problem(self) -> str:
        """Return, once, why the first checkpoint, or the first one with a center, was not written."""
        if self._problem is None or self.writing:
            return ""
        problem, self._problem = self._problem, None
        return f"cannot write a checkpoint to {self.folder}: {problem}. Make room, or name another folder"

    def _count_missed(self, problem: Exception) -> None:
        self.tally = self.tally._replace(missed=self.tally.missed + 1, unsaved=str(problem))
        log.warning("no checkpoint this time, %d missed so far: %s", self.tally.missed, problem)

    def _start(self, make: Callable[[], Checkpoint], last: bool = False) -> None:
        arguments = (make, self._thread, last)
        self._began_writing += 1
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, make: Callable[[], Checkpoint], before: threading.Thread | None, last: bool) -> None:
        if before is not None:
            before.join()
        has_center = False
        try:
            checkpoint = make()
            has_center = bool(checkpoint.center)
            path = self._saving.folder.save(checkpoint)
            if has_center and not self._wrote_center:
                self._wrote_center = True
                self._warn_of_little_room(path)
            self.tally = self.tally._replace(written=self.tally.written + 1, unsaved="")
            log.info("checkpoint written: %s", path)
        except _SKIPPED_ERRORS as exc:
            self._count_missed(exc)
        except Exception as exc:  # The controller raises the first one: see take_problem.
            if not self.tally.written or (has_center and not self._wrote_center):
                self._problem = exc
            self._count_missed(exc)
        if last:
            self._release_center()

    def _warn_of_little_room(self, first: Path) -> None:
        """Warn if later checkpoints will not fit: a temporary file needs room too."""
        try:
            size_bytes, free_bytes = first.stat().st_size, shutil.disk_usage(self.folder).free
        except OSError:  # The folder was removed after the checkpoint was written.
            return
        if free_bytes < KEPT_FILES * size_bytes:
            log.warning(
                "%s has %.1f MB free, and each checkpoint of %.1f MB needs room for %d more, so "
                "later ones will fail: make room, or name another folder",
                self.folder,
                free_bytes / 1e6,
                size_bytes / 1e6,
                KEPT_FILES,
            )

    def _release_center(self) -> None:
        center, self._center = self._center, None
        if center is not None:
            center.close()

    def close(self) -> None:
        if not self.writing:
            self._release_center()
