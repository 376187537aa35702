"""The callbacks that `distribute` adds, and changes to callbacks that save checkpoints."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.worker import COMPUTE, LOADING, VALIDATION
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.learning_rate import warn_of_schedules
from platoon_plugins.keras.marks import change_class
from platoon_plugins.keras.optimizers import average_of_model
from platoon_plugins.keras.resuming import agree_to_resume, given_initial_epoch, warn_if_anew
from platoon_plugins.keras.standby import Hooks, Standby, overrides, take_over, warn_of_own_runs
from platoon_plugins.keras.training import Settings, Training, report_epoch_begin, report_logs

_REPORT_EACH_S = 0.05


class Fits:
    """The state shared by the callbacks of one list: the settings and the fit in progress."""

    def __init__(self, worker: Worker, backend: Backend, settings: Settings, leader_only: tuple[type, ...]) -> None:
        self.worker, self.backend, self.leader_only = worker, backend, leader_only
        self._settings = settings
        self._training: Training | None = None
        self.timer = FitTimer(worker, None)
        self.leads = worker.is_leader
        self.verbose: Any = 0
        self.swaps_at_epochs = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Fits:
        """Share the worker, whose connection cannot be copied."""
        return Fits(self.worker, self.backend, copy.deepcopy(self._settings, memo), self.leader_only)

    def first_epoch(self, model: Any, epochs: int | None, given: int) -> int:
        """Return the first epoch of the next fit, on Keras 2; called before its callbacks."""
        if self.worker.late:
            return given
        # This is a collective call: other workers may have a center.
        has_center = self._settings.rule is not None and average_of_model(model) is None
        resumption = agree_to_resume(self.worker, has_center)
        return given if resumption is None else resumption.first_epoch(epochs, given)

    def prepare(self, model: Any) -> None:
        self._training = Training(self.worker, self.backend, self._settings, model)
        self.timer = FitTimer(self.worker, model)
        if self.swaps_at_epochs:
            self._training.require_no_swap_at_epochs()

    @property
    def training(self) -> Training:
        """The fit whose callbacks Keras is calling."""
        if self._training is None:
            raise ConfigurationError(
                "got the callbacks of distribute() in a loop that has not called on_train_begin: pass them to fit"
            )
        return self._training

    @property
    def testing(self) -> Training | None:
        """The fit that an evaluation belongs to; None outside of a fit."""
        return self._training if self._training is not None and self._training.begun else None

    def follow_leader(self, mine: keras.callbacks.Callback) -> None:
        """Become the leader once all lower ranks have left; call it within a hook of ``mine``."""
        if not self.leads and self.training.leads:
            self.leads = True
            take_over(mine, self.worker.global_rank, self.verbose)

    def center(self) -> contextlib.AbstractContextManager[None]:
        """Give the model the center's weights within ``with``, if a fit is in progress."""
        return contextlib.nullcontext() if self._training is None else self._training.center()


class _First(Hooks):
    """The callback before the user's: it puts the values over all workers into their ``logs``."""

    def __init__(self, fits: Fits) -> None:
        super().__init__()
        self.fits = fits

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.fits.verbose = params.get("verbose", 0)
        if not self.fits.leads:
            self.fits.backend.silence(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self.fits.prepare(self.owner)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.fits.training.epoch_begins(epoch, self.params or {})

    # If no callback overrides on_train_batch_end, Keras does not wait for the logs of each batch.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.fits.training.batch_begins(batch)
        self.fits.timer.batch_begins()

    def on_test_begin(self, logs: Any = None) -> None:
        if (testing := self.fits.testing) is not None:
            self.fits.timer.validates()
            testing.test_begins()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.fits.testing is not None:
            # Other workers wait for this one as long as it reports progress.
            self.fits.worker.progress()

    def on_test_end(self, logs: Any = None) -> None:
        if (testing := self.fits.testing) is not None:
            testing.evaluation.test_ends({} if logs is None else logs)
            self.fits.timer.computes()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.fits.timer.computes()
        self.fits.training.epoch_ends(logs)
        self.fits.follow_leader(self)

    def on_train_end(self, logs: Any = None) -> None:
        self.fits.timer.end()
        self.fits.training.finish()


class _FirstAtBatches(_First):
    """A `_First` for back ends whose metrics are called at the end of batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.fits.training.evaluation.batch_ends({} if logs is None else logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if (testing := self.fits.testing) is not None:
            testing.evaluation.test_batch_ends({} if logs is None else logs)


class _Last(Hooks):
    """The callback after the user's: their decisions become decisions of all workers."""

    def __init__(self, fits: Fits, standbys: Sequence[Standby] = ()) -> None:
        super().__init__()
        self.fits = fits
        self._standbys = standbys

    def on_train_begin(self, logs: Any = None) -> None:
        warn_of_schedules(self.owner, self.fits.worker, self.params or {})
        warn_of_own_runs(self.fits.worker)
        self.fits.training.start((self.params or {}).get("epochs"))
        self.fits.timer.begin(isinstance(self, _LastAtBatches))
        self.fits.follow_leader(self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.fits.training.epoch_begun()
        self.fits.timer.loads()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.fits.training.callbacks_end_epoch(logs)
        self.fits.follow_leader(self)
        for standby in self._standbys:
            standby.follow()


class _LastAtBatches(_Last):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.fits.training.stopping.batch_ends()
        self.fits.timer.loads()


class _ProgressReporter(Hooks):
    """Reports the progress of a single worker's fit, and stops the fit if the job stops."""

    # It reports at most every 50 ms, as its code is usually not in the processor's cache.

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.timer = FitTimer(worker, None)
        self._counted = self._last = 0
        self._batches_at_once, self._report_at = 1, 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> _ProgressReporter:
        """Share the worker, whose connection cannot be copied."""
        return type(self)(self._worker)

    def on_train_begin(self, logs: Any = None) -> None:
        restored = getattr(self.owner, "_initial_epoch", None) or given_initial_epoch(self.owner)
        warn_if_anew(self._worker, restored)
        self._batches_at_once = getattr(self.owner, "steps_per_execution", None) or 1
        self.timer = FitTimer(self._worker, self.owner)
        self.timer.begin(isinstance(self, _ProgressReporterAtBatches))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._counted = self._last = 0
        report_epoch_begin(self._worker, epoch, self.params or {})
        self.timer.loads()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch:
            self.timer.steps(self._batches_at_once)
        self._last = batch + self._batches_at_once
        now = time.perf_counter()
        if now < self._report_at:
            return
        self._report_at = now + _REPORT_EACH_S
        self._count_to(batch)
        if self._worker.should_stop:
            self.owner.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        self._count_to(self._last)

    def on_test_end(self, logs: Any = None) -> None:
        self.timer.computes()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count_to(self._last)
        report_logs(self._worker, logs)
        if self._worker.should_stop:
            self.owner.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self.timer.end()

    def _count_to(self, batches: int) -> None:
        # The last execution may be shorter.
        batches = min(batches, (self.params or {}).get("steps") or batches)
        if batches > self._counted:
            self._worker.progress(steps=batches - self._counted)
            self._counted = batches


class _PhaseReporter(keras.callbacks.Callback):
    """The callback before those of the user of a single worker: enters the phases of the timer."""

    def __init__(self, reporter: _ProgressReporter) -> None:
        super().__init__()
        self._reporter = reporter

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._reporter.timer.batch_begins()

    def on_test_begin(self, logs: Any = None) -> None:
        self._reporter.timer.validates()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._reporter.timer.computes()


class _ProgressReporterAtBatches(_ProgressReporter):
    """A `_ProgressReporter` with a hook at the end of batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.timer.loads()


def with_progress_reports(callbacks: list[Any], worker: Worker, at_batches: bool) -> list[Any]:
    reporter = (_ProgressReporterAtBatches if at_batches else _ProgressReporter)(worker)
    return [_PhaseReporter(reporter), *callbacks, reporter]


def make_first(fits: Fits, at_batches: bool) -> keras.callbacks.Callback:
    return (_FirstAtBatches if at_batches else _First)(fits)


def make_last(fits: Fits, at_batches: bool, standbys: Sequence[Standby]) -> keras.callbacks.Callback:
    return (_LastAtBatches if at_batches else _Last)(fits, standbys)


def bounds_of(callbacks: list[Any]) -> list[tuple[int, int, Fits]]:
    """Return the positions of the first and last callback of each `distribute`, and its `Fits`."""
    # A list without the last one belongs to a training loop of the user, and is left out.
    firsts = {id(callback.fits): i for i, callback in enumerate(callbacks) if isinstance(callback, _First)}
    lasts = [(i, callback.fits) for i, callback in enumerate(callbacks) if isinstance(callback, _Last)]
    return [(firsts[id(fits)], i, fits) for i, fits in lasts if id(fits) in firsts]


def listed(callbacks: Any) -> list[Any]:
    """Return the callbacks of a ``fit`` as a list: Keras also takes one, or nested ones."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if not callbacks:
        return []
    return list(keras.tree.flatten(callbacks) if hasattr(keras, "tree") else callbacks)


def hooks_into_batches(callback: Any) -> bool:
    """Return whether a callback overrides a hook at the end of a training batch."""
    return overrides(callback, "on_batch_end") or overrides(callback, "on_train_batch_end")


def in_center(callback: Any, fits: Fits) -> None:
    """Make a callback write the center's weights into its checkpoints in the middle of an epoch."""
    callback.platoon_fits = fits  # A deep copy must refer to the copied `Fits`.
    base: Any = type(callback)
    # An earlier fit has patched it.
    if hasattr(base, "saves_center"):
        return

    def saving(name: str) -> Callable[..., Any]:
        save: Callable[..., Any] = getattr(base, name)

        def save_center(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.platoon_fits.center():
                return save(self, *args, **kwargs)

        return save_center

    methods = {name: saving(name) for name in _SAVES if hasattr(base, name)}
    change_class(callback, {**methods, "saves_center": True})


def saves_in_mid_epoch(callback: Any) -> bool:
    save_freq = getattr(callback, "save_freq", None)
    return isinstance(save_freq, int) and any(callable(getattr(callback, name, None)) for name in _SAVES)


# The methods that write in ModelCheckpoint and BackupAndRestore, and in OrbaxCheckpoint.
_SAVES = ("_save_model", "_save_checkpoint")


class FitTimer:
    """Enters the phase that follows each hook of a fit."""

    # Keras 2 and torch load a batch between two steps, JAX within the step from an iterator that is
    # timed here. On TensorFlow loading counts as computation.

    def __init__(self, worker: Worker, model: Any) -> None:
        self._worker, self._model = worker, model
        self._backend = keras.backend.backend()
        self._between = self._backend in ("theano", "torch")
        self._step: Callable[..., Any] | None = None
        self._timed: Callable[..., Any] | None = None

    @property
    def _clock(self) -> Any:
        return self._worker.advanced.clock

    def begin(self, at_batches: bool) -> None:
        """Watch the model's steps; ``at_batches`` if `loads` is called after each batch."""
        # A fit that raised may have ended in another phase, with steps that it did not count.
        self.computes()
        self._clock.ahead = 0
        step = getattr(self._model, "train_function", None)
        if step is None or self._backend not in ("torch", "jax") or (self._between and at_batches):
            return
        # A fit that raised has left its own wrapper.
        step = getattr(step, "untimed", step)
        clock, loads = self._clock, self.loads

        @functools.wraps(step)
        def timed(*args: Any) -> Any:
            if self._between:
                results = step(*args)
                loads()
                return results
            *first, batches = args
            return step(*first, clock.loading(batches) if hasattr(batches, "__next__") else batches)

        timed.untimed = step  # type: ignore[attr-defined]
        self._step, self._timed = step, timed
        self._model.train_function = timed

    def loads(self) -> None:
        if self._between:
            self._clock.enter(LOADING)

    def batch_begins(self) -> None:
        if self._between:
            self._clock.enter(COMPUTE)

    def steps(self, number: int) -> None:
        self._clock.step_ahead(number)

    def computes(self) -> None:
        self._clock.enter(COMPUTE)

    def validates(self) -> None:
        self._clock.enter(VALIDATION)

    def end(self) -> None:
        self.computes()
        if self._timed is not None and self._model.train_function is self._timed:
            self._model.train_function = self._step
        self._step = self._timed = None
