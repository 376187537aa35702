"""The epoch at which a fit goes on, in a job that was resumed from a checkpoint: it has the center, and this."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from platoon_base import Worker
from platoon_base.worker import warn_once
from platoon_plugins.keras import trained

__all__ = [
    "Resumption",
    "agree_to_resume",
    "given_initial_epoch",
    "keep_epochs",
    "resume_loops_of_keras_2",
    "warn_if_anew",
]

log = logging.getLogger(__name__)
_KEPT = "epochs of the first keras fit"


class Resumption(NamedTuple):
    """How far the first fit of an earlier run of this job was.

    Attributes
    ----------
    done : int
        Epochs that all workers had ended.
    stopped_of : int
        Of how many, if they had stopped early by their votes; otherwise 0.
    """

    done: int
    stopped_of: int = 0

    def first_epoch(self, epochs: int | None, given: int) -> int:
        """Return the number of the epoch to begin with, counted from 0, and say what the user will see of it.

        Parameters
        ----------
        epochs : int or None
            Of the ``fit``.
        given : int
            Its ``initial_epoch``, or where a callback wants to resume: a later one holds.
        """
        if epochs and (self.done >= epochs or self.stopped_of == epochs):
            why = "its callbacks had stopped it" if self.done < epochs else "those were all"
            warn_once(
                f"this fit trains no more: {self.done} epochs were over when the job was resumed, and {why}; pass more "
                "epochs to fit to train on, or resume from another folder to begin anew"
            )
            return epochs
        log.info("the fit goes on at epoch %d, as the job was resumed", max(self.done, given) + 1)
        return max(self.done, given)


def keep_epochs(worker: Worker, done: int, stopped_of: int = 0) -> None:
    """Leave with the job how far a fit is, for its next checkpoints; those have the first center that a job has."""
    if worker.advanced.sharing == 1:
        worker.keep(_KEPT, [done, stopped_of])


def agree_to_resume(worker: Worker, has_center: bool = True) -> Resumption | None:
    """Return how far this fit was before the job was resumed, the same on all workers; a collective call.

    None for a new job, and for all fits but the first with a center.
    """
    mine = worker.take_kept(_KEPT) if has_center else None
    found = [kept for kept in worker.gather(mine, name="keras fit begins") if kept is not None]
    # A checkpoint may lie between the words of two workers: an epoch that is made again does no harm.
    return Resumption(*min(found)) if found else None


def warn_if_anew(worker: Worker, first_epoch: int) -> None:
    """Warn that a fit without a center begins anew in a job that was resumed, unless a callback has restored it."""
    if worker.resume_at.epoch and not first_epoch and not worker.advanced.shares:
        which = "that averages gradients" if worker.global_size > 1 else "of one worker"
        warn_once(
            f"this job was resumed at epoch {worker.resume_at.epoch}, and its fit begins at epoch 1 with new weights: "
            f"a fit {which} has no center, whose weights are in checkpoints; to go on, pass BackupAndRestore among the "
            "callbacks (Keras 3), or load what ModelCheckpoint saved"
        )


def given_initial_epoch(model: Any) -> int:
    """Return the ``initial_epoch`` of the ``fit`` that is calling a callback; Keras tells no callback."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return int(frame.f_locals.get("initial_epoch") or 0)
        frame = frame.f_back
    return 0


def resume_loops_of_keras_2(first_epoch: Callable[[Any, dict[str, Any]], int]) -> None:
    """Let the loops of Keras 2, which no callback can make begin later, ask for their first epoch.

    Parameters
    ----------
    first_epoch : callable
        Gets the model and the options of a loop, ``callbacks`` and ``initial_epoch`` among them.
    """
    from keras.engine import training_arrays, training_generator

    for module, name in (training_arrays, "fit_loop"), (training_generator, "fit_generator"):
        setattr(module, name, _resuming(getattr(module, name), first_epoch))


def _resuming(loop: Callable[..., Any], first_epoch: Callable[[Any, dict[str, Any]], int]) -> Callable[..., Any]:
    @functools.wraps(loop)
    def resumed(model: Any, *args: Any, **options: Any) -> Any:
        options["initial_epoch"] = first_epoch(model, options)
        trained.in_loops.add(model)
        try:
            return loop(model, *args, **options)
        finally:
            trained.in_loops.discard(model)

    return resumed
