"""What the extensions of this package have in common: each finds the training that its main loop takes part in."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from blocks.extensions import Printing, ProgressBar, TrainingExtension
from blocks.extensions.monitoring import DataStreamMonitoring
from blocks.extensions.saveload import Checkpoint

from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.others import all_extensions, run_in_center, run_on_leader
from platoon_plugins.blocks.training import Settings, Training

__all__ = ["LEADER_ONLY", "Member", "find", "training_of"]

LEADER_ONLY = (Printing, ProgressBar, Checkpoint)
# These shall see the values that count, not those of one worker.
_OF_THE_CENTER = (Checkpoint, DataStreamMonitoring)

# Of each main loop the last one; None in a job of one.
_trainings: weakref.WeakKeyDictionary[Any, Training | None] = weakref.WeakKeyDictionary()


class Member(TrainingExtension):  # type: ignore[misc]
    """An extension that takes part in the training of several workers.

    Whichever member of a main loop is called first begins the training, and ends it.

    Attributes
    ----------
    place : int
        Where it goes in the list of extensions: before all others (-1), where the user put it (0), or behind (1).
    settings : Settings or None
        How to train; one member at most has them.
    stops_together : bool
        Whether it sees to it that the main loops of all workers end together.
    """

    place = 0
    settings: Settings | None = None
    stops_together = False

    @property
    def training(self) -> Training | None:
        """What the main loop takes part in; None in a job of one."""
        return training_of(self.main_loop)

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        """Begin and end the training, and call what is due."""
        callback = str(callback_invoked)  # comparing a CallbackName with another text raises
        training = _entered(self.main_loop, callback)
        if training is not None and callback == "on_error":
            training.abandon(from_main_loop[0])
        elif training is not None and callback == "after_training":
            training.finish()
        super().dispatch(callback_invoked, *from_main_loop)


def training_of(main_loop: Any) -> Training | None:
    """Return the training of a main loop: the one under way, the last one, or a new one; None in a job of one."""
    return _trainings[main_loop] if main_loop in _trainings else _begin(main_loop)


def _entered(main_loop: Any, callback: str) -> Training | None:
    """Return the training, begun as far as it can be in a callback."""
    if callback in ("on_error", "after_training"):
        return _trainings.get(main_loop)
    training = training_of(main_loop)
    if training is None:
        return None
    if training.finished:  # and the main loop is run again
        training = _begin(main_loop)
    if not training.prepared:
        _arrange(main_loop)
        _calm(main_loop, training)
        training.prepared = True
    # What is done before training by others, such as Load, comes first.
    if callback != "before_training" and not training.started:
        training.start()
    return training


def _begin(main_loop: Any) -> Training | None:
    members = [extension for extension in all_extensions(main_loop.extensions) if isinstance(extension, Member)]
    found = [member.settings for member in members if member.settings is not None]
    if len(found) > 1:
        raise ConfigurationError(
            "got ParameterSync twice in one main loop: there is one center; give all triggers to one of them"
        )
    stops = [member for member in members if member.stops_together]
    if len(stops) > 1:
        raise ConfigurationError("got StopTogether twice in one main loop: there is one decision; leave one out")
    settings = found[0] if found else Settings(rule=None, leader_only=LEADER_ONLY)
    worker = connect() if settings.worker is None else settings.worker
    alone = worker.global_size == 1
    training = None if alone else Training(worker, main_loop, settings, stops_together=bool(stops))
    _trainings[main_loop] = training
    return training


def _arrange(main_loop: Any) -> None:
    """Bring the members to their places; the list that is being gone through stays as it is."""
    members = {id(extension): extension.place for extension in main_loop.extensions if isinstance(extension, Member)}
    main_loop.extensions = sorted(main_loop.extensions, key=lambda extension: members.get(id(extension), 0))


def _calm(main_loop: Any, training: Training) -> None:
    for extension in all_extensions(main_loop.extensions):
        if training.worker.global_rank and isinstance(extension, training.settings.leader_only):
            run_on_leader(extension, is_leader)
        elif isinstance(extension, _OF_THE_CENTER) and not isinstance(extension, Member):
            run_in_center(extension, center_of)


def center_of(main_loop: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the parameters of a main loop have the values that count."""
    training = training_of(main_loop)
    return contextlib.nullcontext() if training is None else training.center()


def is_leader(main_loop: Any) -> bool:
    """Tell whether a main loop runs on the first worker, or alone."""
    training = training_of(main_loop)
    return training is None or training.worker.global_rank == 0


def find(main_loop: Any, kind: type) -> Any:
    """Return the first extension of a class, or None."""
    return next((found for found in all_extensions(main_loop.extensions) if isinstance(found, kind)), None)
