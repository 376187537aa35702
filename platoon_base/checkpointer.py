"""Writes the checkpoints of a running job beside it: when one is due, in a thread, and at the end."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from platoon_base.checkpoints import About, Checkpoint, CheckpointFolder
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, LayoutMismatchError
from platoon_base.layout import Layout

__all__ = ["LONGEST_WRITE_S", "Checkpointer", "ReadCenter", "Saving"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
# The workers have just let go of their parameters, or devices did not answer.
_NOT_THIS_TIME = (ConfigurationError, LayoutMismatchError, CollectiveTimeoutError)
_LOOK_S = 0.05
LONGEST_WRITE_S = 300.0
ReadCenter = Callable[[Layout, bool], "tuple[list[Array], list[list[Array]]]"]


class Saving(NamedTuple):
    """Where and how often checkpoints are written.

    Attributes
    ----------
    folder : CheckpointFolder
    every_s : float
        Seconds from one to the next, infinity for one at the end only.
    """

    folder: CheckpointFolder
    every_s: float


class Checkpointer:
    """Writes checkpoints, one at a time: those of the first center that a job has.

    The first is due as soon as there is a center: that it cannot be written is known before the training then.

    Parameters
    ----------
    saving : Saving
    read_center : callable
        Copies the center of a given layout, and the rule's states; its second argument tells whether it may wait for
        workers, or they wait for it.
    resumed : bool
        Whether the newest checkpoint there has a center already.
    """

    def __init__(self, saving: Saving, read_center: ReadCenter, resumed: bool = False) -> None:
        self._saving = saving
        self._read_center = read_center
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None
        self._saw_center = self._over = self._told_of_another = False
        self._keeps_center = resumed
        self._written = 0
        self.next_due = time.monotonic() + saving.every_s

    def due(self, now: float, shared: bool) -> bool:
        """Tell whether it is time for a checkpoint: also when the workers have just come to share parameters."""
        if self._over and shared and not self._told_of_another:
            self._told_of_another = True
            log.warning("the checkpoint stays that of the first parameters; those that are shared now are not saved")
        return not self._over and not self.writing and (now >= self.next_due or (shared and not self._saw_center))

    def next_look(self, now: float) -> float:
        """Return when there may be something to do next."""
        if self._over and not self.writing:
            return math.inf
        return now + _LOOK_S if self.writing else self.next_due

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, about: About, layout: Layout | None) -> None:
        """Begin to write a checkpoint; but none without a center in the place of one that has it."""
        self.next_due = time.monotonic() + self._saving.every_s
        if self._over or (layout is None and self._keeps_center):
            return
        self._saw_center |= layout is not None
        self._keeps_center |= layout is not None
        self._start(lambda: self._checkpoint(about, layout))

    def end(self, about: About, layout: Layout) -> None:
        """Read the center at once, for nobody can do so later, and begin to write the last checkpoint."""
        if self._over:
            return
        self._over = True
        try:
            checkpoint = Checkpoint.of(about, layout, *self._read_center(layout, False))
        except _NOT_THIS_TIME as exc:
            log.warning("no checkpoint of the end: %s", exc)
            return
        self._start(lambda: checkpoint)

    def _start(self, make: Callable[[], Checkpoint]) -> None:
        arguments = (make, self._thread)
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()

    def _checkpoint(self, about: About, layout: Layout | None) -> Checkpoint:
        if layout is None:
            return Checkpoint(about, [], [])
        return Checkpoint.of(about, layout, *self._read_center(layout, True))

    @property
    def too_slow(self) -> str:
        """What to say if a checkpoint takes longer than `LONGEST_WRITE_S`."""
        return (
            f"a checkpoint was not written to {self._saving.folder.path} within {LONGEST_WRITE_S:g} s: does the disk "
            "still answer? The one before it is still there"
        )

    def take_problem(self) -> str:
        """Return why the first checkpoint could not be written, once; later failures are only logged."""
        if self._problem is None or self.writing:
            return ""
        problem, self._problem = self._problem, None
        text = f"cannot write a checkpoint to {self._saving.folder.path}: {problem}"
        if not self._written:
            return f"{text}. Make room, or name another folder"
        log.warning("%s; the training goes on", text)
        return ""

    def _write(self, make: Callable[[], Checkpoint], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            path = self._saving.folder.save(make())
            self._written += 1
            log.info("checkpoint written: %s", path)
        except _NOT_THIS_TIME as exc:
            log.warning("no checkpoint this time: %s", exc)
        except Exception as exc:  # nobody else hears of it
            self._problem = exc
