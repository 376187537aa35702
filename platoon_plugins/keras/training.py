"""One distributed fit on one worker: what happens at each hook, whatever the back end and the way of synchronizing."""

from __future__ import annotations

import contextlib
import copy
import logging
import weakref
from collections.abc import Mapping
from typing import Any

from platoon_base import Worker
from platoon_base.devices.checks import warn_if_not_on_device
from platoon_base.errors import ConfigurationError
from platoon_base.rules import EASGD, Rule
from platoon_base.schedule import votes_suffice
from platoon_plugins.keras import seeds
from platoon_plugins.keras.asynchronous import Asynchronous
from platoon_plugins.keras.backends.base import Backend, Metrics
from platoon_plugins.keras.common_start import start_together
from platoon_plugins.keras.loaders import tell_epoch
from platoon_plugins.keras.mode import Mode
from platoon_plugins.keras.requirements import require_distributable, require_new, require_no_other_average
from platoon_plugins.keras.same_data import data_of_fit, warn_if_not_sharded
from platoon_plugins.keras.statistics import Statistics
from platoon_plugins.keras.synchronous import Synchronous

__all__ = ["Training"]

log = logging.getLogger(__name__)


class Training:
    """Called by the two callbacks that stand before and after the user's.

    All collective calls of a fit are made here, each from a hook that every worker reaches: at the first of
    on_test_begin and on_epoch_end, once the batches of an epoch are over; at the end of an evaluation, if all workers
    evaluate; behind the last callback's on_epoch_end; at the begin and the end of the fit.

    Parameters
    ----------
    worker : Worker
    backend : Backend
    sync : Rule, None or "auto"
    every_n_batches : int
    stop : {"any", "all", "leader"}
    on_nonfinite : {"raise", "skip", "restore"}
    """

    def __init__(
        self,
        worker: Worker,
        backend: Backend,
        sync: Rule | str | None,
        every_n_batches: int,
        stop: str,
        on_nonfinite: str,
    ) -> None:
        self._worker, self._backend = worker, backend
        self._sync, self._every_n_batches = sync, every_n_batches
        self._policy, self._on_nonfinite = stop, on_nonfinite
        self._fitting = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Training:
        """Return one for another fit, of the same worker: its connections have no copy."""
        options = copy.deepcopy((self._sync, self._every_n_batches, self._policy, self._on_nonfinite), memo)
        return Training(self._worker, self._backend, *options)

    # The begin of a fit.

    def read_params(self, params: dict[str, Any]) -> None:
        """Turn the progress bar of all workers but one off."""
        if self._worker.global_rank:
            self._backend.silence(params)

    def prepare(self, model: Any) -> None:
        """Look at the model before any callback does something to it."""
        average = require_distributable(model, self._backend)
        warn_if_not_on_device(self._worker.device, self._backend.weights(model))
        self._model = model
        self._data = data_of_fit(model)
        self._mode = self._choose_mode(average)
        self._losses = self._backend.watch_losses(model, average)
        self._metrics: Metrics = self._backend.metrics(model)
        self._wants_stop = self._stopped = False

    def start(self) -> None:
        """Begin the fit, after the user's callbacks have: one of them may have restored a checkpoint."""
        worker = self._worker
        if worker.late:
            raise ConfigurationError(
                "this worker joined late: the workers of a fit count epochs together from its begin; launch the job "
                "with more workers"
            )
        self._let_go_of_earlier()
        if isinstance(self._mode, Asynchronous):
            _asynchronous.add(self._model.optimizer)
        members = worker.meet("keras fit begins", binds=True)
        how = self._mode.purpose(self._model)
        purpose = f"distribute({how}, every_n_batches={self._every_n_batches}, stop={self._policy!r})"
        start_together(self._model, worker, self._backend, purpose, members)
        warn_if_not_sharded(self._data, worker)
        self._mode.start(self._model, members)
        self._statistics = Statistics(worker, self._backend, self._model)
        if worker.shares:
            _sharing.add(worker)
        self._random_state = seeds.state(), self._backend.random_state()
        self._backend.seed(seeds.vary(worker.global_rank))
        if worker.global_rank and not hasattr(self._model, _VARIED):
            self._backend.vary_noise(self._model, worker.global_rank)
            setattr(self._model, _VARIED, True)
        self._fitting = True

    def _let_go_of_earlier(self) -> None:
        """Release what a fit shared that was interrupted, and nothing that the script shares itself."""
        worker = self._worker
        if worker in _sharing or not worker.shares:
            worker.release_shared_params()
            _sharing.discard(worker)
        elif isinstance(self._mode, Asynchronous):
            raise ConfigurationError(
                "this script shares parameters by init_shared_params: there is one center at a time; call "
                "release_shared_params on every worker before fit"
            )

    def _choose_mode(self, average: Any) -> Mode:
        sync, worker, backend = self._sync, self._worker, self._backend
        if average is not None:
            if sync not in ("auto", None):
                raise ConfigurationError(
                    f"got sync={sync!r} and a DistributedOptimizer: the workers would be kept together twice; pass "
                    "sync=None for averaged gradients, or compile with the plain optimizer for the rule"
                )
            return Synchronous(worker, backend, average, self._policy)
        if sync is None:
            raise ConfigurationError(
                "got sync=None and a plain optimizer: each worker would train a model of its own; compile with "
                "DistributedOptimizer(optimizer), or pass a rule such as sync=EASGD()"
            )
        if sync == "auto" and self._model.optimizer not in _asynchronous:
            require_new(backend.steps_taken(self._model))
        backend.optimizer_state(self._model)  # which builds it, and what is inside it
        require_no_other_average(self._model.optimizer)
        rule: Any = EASGD() if sync == "auto" else sync
        return Asynchronous(worker, backend, rule, self._every_n_batches, self._on_nonfinite, self._policy)

    # Training.

    def epoch_begins(self, epoch: int) -> None:
        """Take note of a new epoch, with all metrics just reset."""
        self._metrics.epoch_begins()
        if self._data is not None:
            tell_epoch(self._data[0], epoch)
        self._losses.begin("train")
        self._epoch = epoch
        self._batches = self._last_batch = 0
        self._batches_closed = False
        self._train_results: dict[str, Any] = {}
        self._test_results: dict[str, Any] = {}
        self._worker.progress(epoch=epoch + 1)

    def batch_begins(self, batch: int) -> None:
        """Do what is due between two batches."""
        self._last_batch = batch + (getattr(self._model, "steps_per_execution", None) or 1)
        self._count_to(batch)
        if self._stops():
            self._model.stop_training = True

    def batch_ends(self, logs: Mapping[str, Any] | None) -> None:
        """Take note of a batch; called on back ends that need it."""
        self._metrics.train_batch(logs or {})

    def hear_callbacks(self) -> None:
        """Take up what the user's callbacks did after a batch: a stop is for all workers, or not yet."""
        if self._model.stop_training and not self._wants_stop:
            self._want_stop()
        self._model.stop_training = self._stops()

    def _stops(self) -> bool:
        """Tell whether the fit is to end in the middle of an epoch; a job that stops counts as a vote."""
        if self._worker.should_stop and not self._wants_stop:
            self._want_stop()
        return self._mode.stops

    def _want_stop(self) -> None:
        self._wants_stop = True
        self._mode.vote()

    def _count_to(self, batches: int) -> None:
        new = batches - self._batches
        if new > 0:
            self._batches = batches
            self._worker.progress(steps=new)
            self._mode.batches_done(new)

    # Evaluation.

    def test_begins(self) -> None:
        """Take note of an evaluation; that of a fit evaluates the common weights."""
        if self._fitting:
            self._metrics.test_begins()
            self._close_batches(evaluates=True)
            self._losses.begin("test")

    def test_batch_ends(self, logs: Mapping[str, Any] | None) -> None:
        """Take note of a batch of an evaluation; called on back ends that need it."""
        if self._fitting:
            self._metrics.test_batch(logs or {})

    def test_ends(self, logs: dict[str, Any]) -> None:
        """Add up the metrics of an evaluation that all workers made, and put them into ``logs``."""
        if self._fitting and self._all_evaluate:
            arrays = [*self._metrics.test_state(), self._batches_with_losses("test")]
            *state, counts = self._worker.sum_arrays(f"keras evaluation {self._epoch}", arrays).arrays
            self._test_results = self._results("test", state, counts)
            logs.update({name: self._test_results[name] for name in logs if name in self._test_results})
        self._losses.phase = "train"

    # The end of an epoch.

    def epoch_ends(self, epoch: int, logs: dict[str, Any]) -> None:
        """Put the values of all workers together into ``logs``, before any other callback sees them."""
        self._close_batches(evaluates=False)
        self._require_known(logs)
        for name in logs:
            plain = name[4:] if name.startswith("val_") else name
            if name in self._train_results:
                logs[name] = self._train_results[name]
            elif plain in self._test_results:
                logs[name] = self._test_results[plain]
        if self._someone_evaluates and not self._all_evaluate:
            # A worker that stopped in the middle of its batches does not evaluate: all of them go without.
            for name in [name for name in logs if name.startswith("val_")]:
                del logs[name]
        self._worker.progress(loss=float(logs.get("loss", float("nan"))))
        if self._worker.global_rank == 0:
            self._worker.report({name: value for name, value in logs.items() if isinstance(value, (int, float))})

    def close_epoch(self) -> None:
        """Decide together, after all callbacks, whether to go on."""
        self._mode.leave_center()
        self._wants_stop |= bool(self._model.stop_training) or self._worker.should_stop
        mine = {_STOPS: float(self._wants_stop), **self._mode.tell()}
        pairs = {f"{self._worker.global_rank} {name}": (value, 1.0) for name, value in mine.items()}
        summed = self._worker.sum_arrays(f"keras vote {self._epoch}", [], pairs)
        told: dict[int, dict[str, float]] = {rank: {} for rank in summed.ranks}
        for key, (value, _) in summed.pairs.items():
            rank, _, name = key.partition(" ")
            told[int(rank)][name] = value
        voters = {rank for rank, values in told.items() if values[_STOPS]}
        stops = bool(summed.stop) or votes_suffice(self._policy, voters, set(summed.ranks))
        if stops:
            log.info("the fit ends after epoch %d, by the votes of ranks %s", self._epoch + 1, sorted(voters))
        self._mode.hear(told)
        self._model.stop_training = self._stopped = stops

    def finish(self) -> None:
        """End the fit."""
        if self._fitting and bool(self._model.stop_training) != self._stopped:
            raise ConfigurationError(
                "a callback that comes behind those of distribute() has stopped this worker alone: pass all callbacks "
                "to distribute([...]), which then ends the fit for all workers"
            )
        self._mode.finish()
        _sharing.discard(self._worker)
        self._losses.end()
        self._data = None
        plain, own = self._random_state
        seeds.go_on(plain)
        self._backend.restore_random_state(own, self._worker.seed + seeds.fits())
        self._fitting = False

    def center(self) -> contextlib.AbstractContextManager[None]:
        """Within the ``with`` block the model has the common weights."""
        return self._mode.center() if self._fitting else contextlib.nullcontext()

    def _close_batches(self, evaluates: bool) -> None:
        """Meet at the end of an epoch's batches: from here on nobody trains until `close_epoch`."""
        if self._batches_closed:
            return
        self._batches_closed = True
        self._count_to(self._last_batch)
        self._mode.epoch_ends()
        train = self._metrics.train_state()
        arrays = [*train, self._batches_with_losses("train"), self._statistics.changed()]
        pairs = {str(self._worker.global_rank): (float(evaluates), 1.0)}
        summed = self._worker.sum_arrays(f"keras epoch {self._epoch}", arrays, pairs)
        self._mode.members_are(summed.ranks)
        self._agree_on_evaluation(
            [int(rank) for rank, (evaluating, _) in summed.pairs.items() if evaluating], summed.ranks
        )
        *state, counts, changed = summed.arrays
        self._train_results = self._results("train", state, counts)
        self._statistics.average(f"keras statistics {self._epoch}", changed)
        self._mode.enter_center()

    def _batches_with_losses(self, phase: str) -> Any:
        self._backend.settle()
        return self._losses.count(phase, self._worker)

    def _results(self, phase: str, state: list[Any], counts: Any) -> dict[str, Any]:
        """Return what is logged for the sum of all workers' metrics; all of them call it."""
        results = self._metrics.results(state)
        loss = self._losses.combined(phase, self._worker, f"keras {phase} losses {self._epoch}", counts)
        return results if loss is None or "loss" not in results else {**results, "loss": loss}

    def _agree_on_evaluation(self, evaluating: list[int], members: list[int]) -> None:
        self._someone_evaluates, self._all_evaluate = bool(evaluating), len(evaluating) == len(members)
        # After a stop in the middle of an epoch Keras 2 does not evaluate.
        if self._someone_evaluates and not self._all_evaluate and not self._mode.stops:
            raise ConfigurationError(
                f"ranks {sorted(evaluating)} evaluate after epoch {self._epoch + 1}, and the other ones of "
                f"{sorted(members)} do not: pass validation_data, its shard, and the same validation_freq to fit on "
                "every worker"
            )

    def _require_known(self, logs: Mapping[str, Any]) -> None:
        unknown = sorted(name for name in logs if name not in self._train_results and not name.startswith("val_"))
        if unknown:
            raise ConfigurationError(
                f"got {', '.join(map(repr, unknown))} in the logs of an epoch, of which no metric of the model keeps "
                "track: a value of one worker's last batch cannot be made that of all workers; let train_step update "
                "a metric (self.metrics) and return its result"
            )


# Workers whose parameters a fit shares at the moment.
_sharing: weakref.WeakSet[Worker] = weakref.WeakSet()
# Optimizers that a fit has used with a rule.
_asynchronous: weakref.WeakSet[Any] = weakref.WeakSet()
_STOPS = "stops"
_VARIED = "_platoon_noise_varied"
