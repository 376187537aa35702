"""The epoch at which a fit continues in a job that was resumed from a checkpoint."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from platoon_base import Worker
from platoon_base.worker import warn_once
from platoon_plugins.keras import marks

log = logging.getLogger(__name__)
_KEPT = "epochs of the first keras fit"


class Resumption(NamedTuple):
    """Progress of the first fit in the previous run of this job."""

    # All workers had completed `done` epochs. `stopped_of` is the number of epochs of that fit if
    # votes stopped it early, otherwise 0.

    done: int
    stopped_of: int = 0

    def first_epoch(self, epochs: int | None, given: int) -> int:
        """Return the first epoch, counted from 0, and log it; at least ``given``."""
        if epochs and (self.done >= epochs or self.stopped_of == epochs):
            why = "its callbacks had stopped it" if self.done < epochs else "there were no more"
            warn_once(
                f"this fit trains no more: {self.done} epochs were done when the job was resumed, "
                f"and {why}; to train longer pass more epochs to fit, or to start from the "
                "beginning resume from another folder"
            )
            return epochs
        log.info("the fit continues at epoch %d, because the job was resumed", max(self.done, given) + 1)
        return max(self.done, given)


def keep_epochs(worker: Worker, done: int, stopped_of: int = 0) -> None:
    """Store the progress of a fit for checkpoints, if it has the job's first center."""
    if worker.advanced.sharing == 1:
        worker.keep(_KEPT, [done, stopped_of])


def agree_to_resume(worker: Worker, has_center: bool = True) -> Resumption | None:
    """Return the progress of the first fit with a center before the job was resumed, or None."""
    # This is a collective call.
    mine = worker.take_kept(_KEPT) if has_center else None
    found = [kept for kept in worker.gather(mine, name="keras fit begins") if kept is not None]
    # Workers may have stored different epochs in a checkpoint. Repeating an epoch does no harm.
    return Resumption(*min(found)) if found else None


def warn_if_anew(worker: Worker, first_epoch: int) -> None:
    """Warn if a fit without a center starts from scratch in a resumed job."""
    if worker.resume_at.epoch and not first_epoch and not worker.advanced.shares:
        which = "that averages gradients" if worker.global_size > 1 else "of one worker"
        warn_once(
            f"this job was resumed at epoch {worker.resume_at.epoch}, and its fit starts at epoch "
            f"1 with new weights: checkpoints have the weights of a center, and a fit {which} "
            "has none. Pass BackupAndRestore among the callbacks (Keras 3), or load a file of "
            "ModelCheckpoint"
        )


def given_initial_epoch(model: Any) -> int:
    return int(marks.arguments_of_fit(model).get("initial_epoch") or 0)
