"""Metrics and losses of an epoch and its evaluation, over the data of all workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.worker import warn_once
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.modes import Mode


@dataclass
class _Epoch:
    """The state of an epoch; ``test`` has the names in ``logs`` without ``val_``."""

    number: int
    train: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    own_state: dict[str, list[Array]] = field(default_factory=dict)
    any_rank_evaluates: bool = False
    all_evaluate: bool = False


class Evaluation:
    """Sums the states of metrics and the losses of batches over the workers, for one fit."""

    def __init__(self, worker: Worker, backend: Backend, model: Any, average: Any) -> None:
        self._worker, self._backend = worker, backend
        self._losses = backend.watch_losses(model, average)
        self._metrics = backend.metrics(model)
        self._epoch = _Epoch(0)
        self.ranks: list[int] = []

    @property
    def all_evaluate(self) -> bool:
        return self._epoch.all_evaluate

    # Training.

    def epoch_begins(self, number: int) -> None:
        self._metrics.epoch_begins()
        self._losses.begin("train")
        self._epoch = _Epoch(number)

    def batch_ends(self, logs: Mapping[str, Any]) -> None:
        """Record a batch; called only on back ends that need it."""
        self._metrics.train_batch(logs)

    def add_up_training(self, evaluates: bool, changed: Array, mode: Mode) -> Array:
        """Sum metrics, losses and ``changed`` over the workers; a collective call."""
        own = self._epoch.own_state["train"] = self._metrics.train_state()
        arrays = [*own, self._batches_with_losses("train"), changed]
        pairs = {"evaluate": (float(evaluates), 1.0)}
        summed = self._worker.advanced.sum_arrays(f"keras epoch {self._epoch.number}", arrays, pairs)
        mode.ranks = summed.ranks
        self.ranks = summed.ranks
        evaluating = summed.pairs["evaluate"][0]
        self._epoch.any_rank_evaluates = evaluating > 0
        self._epoch.all_evaluate = evaluating == len(summed.ranks)
        if 0 < evaluating < len(summed.ranks):
            self._require_stop(evaluates, mode)
        *state, count, total_changed = summed.arrays
        self._epoch.train = self._results("train", state, count)
        return total_changed

    def _require_stop(self, evaluates: bool, mode: Mode) -> None:
        """Raise unless the fit ends, as only some workers evaluate; a collective call."""
        epoch = self._epoch.number
        told = self._worker.gather([self._worker.global_rank, evaluates], name=f"keras evaluates {epoch}")
        if not mode.stops:  # Keras 2 does not evaluate after a stop in mid-epoch.
            evaluating = [rank for rank, does in told if does]
            raise ConfigurationError(
                f"ranks {evaluating} evaluate after epoch {epoch + 1}, and the others of "
                f"{[rank for rank, _ in told]} do not: pass validation_data, its shard, and the "
                "same validation_freq to fit on every worker"
            )

    # Evaluation.

    def test_begins(self) -> None:
        self._metrics.test_begins()
        self._losses.begin("test")

    def test_batch_ends(self, logs: Mapping[str, Any]) -> None:
        """Record a batch of an evaluation; called only on back ends that need it."""
        self._metrics.test_batch(logs)

    def test_ends(self, logs: dict[str, Any]) -> None:
        """Put the values over all workers into ``logs``, by a collective call if all evaluate."""
        epoch = self._epoch
        if epoch.all_evaluate:
            epoch.test = self._add_up_test(str(epoch.number))
            logs.update({name: epoch.test[name] for name in logs if name in epoch.test})
        self._losses.phase = "train"

    # An evaluation outside of a fit.

    def begin_by_itself(self) -> None:
        """Start an evaluation outside of a fit; the caller has reset all metrics."""
        self._metrics.epoch_begins()

    def together(self, number: int) -> dict[str, Any]:
        """Return the values over all workers; a collective call with a unique ``number``."""
        values = self._add_up_test(f"by itself {number}")
        self._losses.end()
        return values

    # The end of an epoch.

    def fill(self, logs: dict[str, Any]) -> None:
        """Put the values of all workers into ``logs``; a collective call on Keras 3."""
        epoch = self._epoch
        training = {name: value for name, value in logs.items() if not name.startswith("val_")}
        train = self._of_step("train", training, epoch.train)
        validation = {name[4:]: value for name, value in logs.items() if name not in training}
        test = self._of_step("test", validation, epoch.test) if epoch.all_evaluate else epoch.test
        for name in logs:
            plain = name[4:] if name.startswith("val_") else name
            if name in train:
                logs[name] = train[name]
            elif plain in test:
                logs[name] = test[plain]
        if epoch.any_rank_evaluates and not epoch.all_evaluate:
            # A worker that stopped in mid-epoch does not evaluate, so no worker has these values.
            for name in [name for name in logs if name.startswith("val_")]:
                del logs[name]

    def end(self) -> None:
        self._losses.end()

    def _of_step(self, phase: str, logs: Mapping[str, Any], total: dict[str, Any]) -> dict[str, Any]:
        """Return ``total``, or the values that a step has chosen; a collective call on Keras 3."""
        if not self._backend.lets_steps_choose_logs:
            return total
        # A worker without a batch has no logs and cannot decide alone.
        name = f"keras {phase} logs {self._epoch.number}"
        chosen = self._worker.gather(len(logs) if set(logs) != set(total) else 0, name=name)
        if not any(chosen):
            return total
        # A value that equals a metric's result on every worker becomes that metric over all data;
        # another number becomes the mean over the workers. `logs` is empty without a batch.
        own = self._metrics.results_again(self._epoch.own_state[phase])
        metrics, names = sorted(own), max(chosen)
        matches, numbers = np.zeros((names, len(metrics))), np.zeros(names)
        for i, (_, value) in enumerate(sorted(logs.items())):
            matches[i] = [_is_same(value, own[metric]) for metric in metrics]
            numbers[i] = float(value) if _is_number(value) else np.nan
        arrays = [matches, numbers, np.array(float(bool(logs)))]
        on_all, sums, workers = self._worker.advanced.sum_arrays(name, arrays).arrays
        values: dict[str, Any] = {}
        averaged = []
        for key, counts, number in zip(sorted(logs), on_all, sums):
            found = [metric for metric, count in zip(metrics, counts) if count == workers]
            if found:
                values[key] = total[key if key in found else found[0]]
            elif _is_number(logs[key]):
                values[key] = float(number / workers)
                averaged.append(key)
            else:
                raise ConfigurationError(
                    f"got {key!r} in the logs of an epoch, a {type(logs[key]).__name__} of which no metric of the "
                    "model keeps track: only a number can be averaged over the workers; let the step update a metric "
                    "(self.metrics) and return its result"
                )
        if averaged:
            warn_once(
                f"got {', '.join(map(repr, averaged))} in the logs of an epoch, which no metric "
                "of the model tracks: the value is the mean of each worker's last batch; for a "
                "value over all rows let the step update a metric (self.metrics) and return its "
                "result"
            )
        return values

    def _batches_with_losses(self, phase: str) -> int:
        self._backend.settle()
        return self._losses.count(phase)

    def _add_up_test(self, name: str) -> dict[str, Any]:
        own = self._epoch.own_state["test"] = self._metrics.test_state()
        arrays = [*own, self._batches_with_losses("test")]
        summed = self._worker.advanced.sum_arrays(f"keras evaluation {name}", arrays)
        self.ranks = summed.ranks
        *state, count = summed.arrays
        return self._results("test", state, count, name)

    def _results(self, phase: str, state: list[Array], count: Array, name: str = "") -> dict[str, Any]:
        """Return the values to log for the metric state of all workers; a collective call."""
        results = self._metrics.results(state)
        # All losses are means over rows, which the metrics have.
        if not count:
            return results
        loss = self._losses.combined(phase, self._worker, f"keras {phase} losses {name or self._epoch.number}")
        return {**results, "loss": loss} if "loss" in results else results


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and isinstance(value, (int, float, np.number, np.ndarray))


def _is_same(value: Any, result: Any) -> bool:
    """Return whether two values agree up to the rounding of a compiled program."""
    if isinstance(value, Mapping) or np.shape(value) != np.shape(result):
        return False
    return bool(np.allclose(value, result, rtol=1e-5, atol=0, equal_nan=True))
