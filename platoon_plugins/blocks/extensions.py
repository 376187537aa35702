"""The base class of this package's extensions, and reports of a main loop to the launcher."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import theano
from blocks.extensions import FinishAfter, Printing, ProgressBar, TrainingExtension
from blocks.extensions.monitoring import DataStreamMonitoring
from blocks.extensions.saveload import Checkpoint

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.worker import COMPUTE, LOADING
from platoon_plugins.blocks.learning_rate import warn_of_unscaled_schedules
from platoon_plugins.blocks.model import decay_statistics
from platoon_plugins.blocks.streams import is_broadcast
from platoon_plugins.blocks.training import Settings, Training
from platoon_plugins.blocks.user_extensions import all_extensions, run_in_center, run_on_leader, watch_files

LEADER_ONLY = (Printing, ProgressBar, Checkpoint)
# Extensions that save or evaluate the center's values instead of one worker's.
_OF_THE_CENTER = (Checkpoint, DataStreamMonitoring)

_LIMITS = {"after_n_epochs": "last_epoch", "after_n_batches": "last_step"}
# Bound for one monitoring extension, as the controller's table is bounded.
_MAX_REPORTED_NUMBERS = 100

# The latest training of each main loop; None with one worker.
_trainings: weakref.WeakKeyDictionary[Any, Training | None] = weakref.WeakKeyDictionary()


class Cost:
    """The cost of the latest batch, which the compiled function stores in a shared variable."""

    def __init__(self) -> None:
        self._latest: Any = None
        self._next_s = 0.0

    def watch(self, algorithm: Any) -> None:
        """Make the compiled function store the cost; the algorithm is not yet initialized."""
        cost: Any = getattr(algorithm, "cost", None)
        if self._latest is None and getattr(cost, "ndim", None) == 0 and hasattr(algorithm, "add_updates"):
            self._latest = theano.shared(np.array(np.nan, cost.dtype), name="platoon_cost")
            algorithm.add_updates([(self._latest, cost)])

    def report(self, worker: Worker, now: bool = False) -> None:
        """Report the cost at most once per second, or ``now``: reading it waits for the GPU."""
        if self._latest is not None and (now or time.monotonic() >= self._next_s):
            self._next_s = time.monotonic() + 1.0
            worker.progress(loss=float(self._latest.get_value()))


# The main loop reads a batch after `after_batch` and `before_epoch`.
_PHASES = {
    "before_epoch": LOADING,
    "before_batch": COMPUTE,
    "after_batch": LOADING,
    "after_epoch": COMPUTE,
    "after_training": COMPUTE,
}


class DistributedExtension(TrainingExtension):
    """Base class of distributed extensions; the first one called starts and ends the training."""

    # Position among the extensions: -1 before all others, 0 as placed, 1 after them.
    order = 0
    # At most one extension of a main loop has settings.
    settings: Settings | None = None
    # Which votes suffice; only `StopTogether` has it.
    policy: str | None = None

    @property
    def training(self) -> Training | None:
        return training_of(self.main_loop)

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        # Comparing a CallbackName with another text raises.
        callback = str(callback_invoked)
        training = _entered(self.main_loop, callback)
        if training is not None and callback == "on_error":
            training.leave_after(from_main_loop[0])
        elif training is not None and callback == "after_training":
            training.finish()
        super().dispatch(callback_invoked, *from_main_loop)
        if training is not None and callback in _PHASES:
            training.worker.advanced.clock.enter(_PHASES[callback])


def training_of(main_loop: Any) -> Training | None:
    """Return the latest training of a main loop, or a new one; None for a single worker."""
    return _trainings[main_loop] if main_loop in _trainings else _new_training(main_loop)


def _entered(main_loop: Any, callback: str) -> Training | None:
    """Return the training, after the parts of its start that are due at this callback."""
    if callback in ("on_error", "after_training"):
        return _trainings.get(main_loop)
    training = training_of(main_loop)
    # After the end of a training, the main loop runs again.
    if training is not None and training.ended:
        training = _new_training(main_loop)
    if training is None:
        return None
    if not training.prepared:
        _sort(main_loop)
        _adapt_users_extensions(main_loop, training)
        training.prepared = True
    # Other extensions, such as Load, may still change the parameters in before_training.
    if callback != "before_training" and not training.started:
        training.start()
    return training


def report_cost(main_loop: Any, cost: Cost, now: bool = False) -> None:
    worker = _worker_of(main_loop)
    if worker.advanced.launched and not worker.closed:
        cost.report(worker, now)


def report_batch(main_loop: Any) -> None:
    """Record a batch of a single launched worker, and end the main loop if the job stops."""
    worker = _worker_of(main_loop)
    if worker.advanced.launched and not worker.closed:
        worker.progress(steps=1, epoch=main_loop.status["epochs_done"] + 1)
        if worker.should_stop:
            main_loop.log.current_row["training_finish_requested"] = True


def report_limits(main_loop: Any) -> None:
    """Report the number of epochs or batches that `FinishAfter` sets."""
    worker = _worker_of(main_loop)
    if not worker.advanced.launched:
        return
    for extension in all_extensions(main_loop.extensions):
        if isinstance(extension, FinishAfter):
            for _, predicate, _ in extension._conditions:
                name = _LIMITS.get(getattr(predicate, "condition", ""))
                if name:
                    limit: dict[str, Any] = {name: int(predicate.num)}
                    worker.advanced.announce(**limit)


def report_records(main_loop: Any, records: Mapping[str, Any]) -> None:
    """Report the scalars among the records to the launcher, from the leader only."""
    training = training_of(main_loop)
    worker = _worker_of(main_loop) if training is None else training.worker
    if not worker.advanced.launched or worker.closed or not is_leader(main_loop):
        return
    arrays = {name: np.asarray(value) for name, value in records.items()}
    numbers = {name: float(value) for name, value in arrays.items() if value.ndim == 0 and value.dtype.kind in "fiu"}
    if numbers:
        worker.report(dict(islice(numbers.items(), _MAX_REPORTED_NUMBERS)))


def _settings_of(main_loop: Any) -> Settings:
    found = [each.settings for each in _ours(main_loop) if each.settings is not None]
    if len(found) > 1:
        raise ConfigurationError(
            "got ParameterSync twice in one main loop, which has one center: give all triggers to one of them"
        )
    return found[0] if found else Settings(rule=None, leader_only=LEADER_ONLY)


def _ours(main_loop: Any) -> list[DistributedExtension]:
    return [found for found in all_extensions(main_loop.extensions) if isinstance(found, DistributedExtension)]


def _worker_of(main_loop: Any) -> Worker:
    worker = _settings_of(main_loop).worker
    return connect() if worker is None else worker


def _new_training(main_loop: Any) -> Training | None:
    settings = _settings_of(main_loop)
    stops = [extension for extension in _ours(main_loop) if extension.policy is not None]
    if len(stops) > 1:
        raise ConfigurationError("got StopTogether twice in one main loop: leave one out")
    worker = _worker_of(main_loop)
    alone = worker.global_size == 1
    # With a broadcast stream each worker makes as many steps as one process.
    decay_statistics(main_loop.algorithm, 1 if is_broadcast(main_loop.data_stream) else worker.global_size)
    policy = stops[0].policy if stops else None
    training = None if alone else Training(worker, main_loop, settings, policy)
    _trainings[main_loop] = training
    return training


def _sort(main_loop: Any) -> None:
    # A new list, as the main loop iterates over the old one.
    main_loop.extensions = sorted(main_loop.extensions, key=_order)


def _order(extension: Any) -> int:
    return extension.order if isinstance(extension, DistributedExtension) else 0


def _adapt_users_extensions(main_loop: Any, training: Training) -> None:
    watch_files(training.worker)
    if training.worker.global_rank == 0:
        warn_of_unscaled_schedules(all_extensions(main_loop.extensions), training.worker.global_size)
    for extension in all_extensions(main_loop.extensions):
        if training.worker.global_rank and isinstance(extension, training.settings.leader_only):
            run_on_leader(extension, is_leader)
        named = tuple(kind for kind in training.settings.leader_only if kind not in LEADER_ONLY)
        if isinstance(extension, (*_OF_THE_CENTER, *named)) and not isinstance(extension, DistributedExtension):
            run_in_center(extension, center_of)
            training.keeps_evaluated |= is_leader(main_loop) or not isinstance(extension, training.settings.leader_only)


def center_of(main_loop: Any) -> contextlib.AbstractContextManager[None]:
    training = training_of(main_loop)
    return contextlib.nullcontext() if training is None else training.center()


def is_leader(main_loop: Any) -> bool:
    training = training_of(main_loop)
    return training is None or training.leads


def find(main_loop: Any, kind: type) -> Any:
    return next((found for found in all_extensions(main_loop.extensions) if isinstance(found, kind)), None)
