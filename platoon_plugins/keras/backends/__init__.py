"""The differences between the back ends of Keras: one module with ``backend`` for each."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from platoon_base.dtypes import Array
from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_plugins.keras.sums import BatchLosses, only_adds

__all__ = ["Backend", "Metrics", "current", "not_additive", "require_declared"]


def current() -> Backend:
    """Return the `Backend` for Keras in this process, or raise `BackendUnavailableError`."""
    name = f"{__name__}.{keras.backend.backend()}"
    if importlib.util.find_spec(name) is None:
        raise BackendUnavailableError(
            f"got Keras {keras.__version__} on {keras.backend.backend()}: training is distributed on torch, jax and "
            "tensorflow (Keras 3) and theano (Keras 2.3.1); set KERAS_BACKEND to one of them"
        )
    found: Backend = importlib.import_module(name).backend()
    return found


class Metrics:
    """The state of the metrics in ``logs``, as arrays that can be summed over workers."""

    def epoch_begins(self) -> None:
        """Record the start of an epoch; raise if a metric's state is not zero."""
        raise NotImplementedError

    def train_batch(self, logs: Mapping[str, Any]) -> None:
        """Record the end of a training batch."""

    def test_begins(self) -> None:
        """Record the start of an evaluation."""

    def test_batch(self, logs: Mapping[str, Any]) -> None:
        """Record the end of a batch of an evaluation."""

    def train_state(self) -> list[Array]:
        raise NotImplementedError

    def test_state(self) -> list[Array]:
        raise NotImplementedError

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        """Return the values to log for a state."""
        raise NotImplementedError

    def results_again(self, state: Sequence[Array]) -> dict[str, Any]:
        """Return the values for a state of before; needed if steps choose their logs."""
        raise NotImplementedError

    def variables(self) -> list[Any]:
        raise NotImplementedError


class Backend:
    """One back end of Keras; variables have the methods of Theano's shared variables."""

    watches_batches: bool
    honors_initial_epoch = True
    lets_steps_choose_logs = True

    def require_trainable(self, model: Any, averaged: bool) -> None:
        """Raise `ConfigurationError` if the model cannot be trained in this way."""

    def trains_together(self, model: Any) -> bool:
        """Return whether Keras itself trains a model on several processes at once."""
        return False

    def compiled_with(self, model: Any) -> dict[str, Any]:
        """Return the arguments of compile() that must be the same on all workers."""
        return {}

    def weights(self, model: Any) -> list[Any]:
        raise NotImplementedError

    def statistics(self, model: Any) -> list[Any]:
        """Return other state of layers, and seeds of random layers, whose ``rule`` is "own"."""
        raise NotImplementedError

    def optimizer_state(self, model: Any) -> list[Any]:
        """Return the variables of the optimizer, including learning rate and counters."""
        raise NotImplementedError

    def moments(self, model: Any) -> list[Any]:
        """Return float state of optimizers in the shape of a weight; no accumulated gradients."""
        raise NotImplementedError

    def vary_noise(self, model: Any, rank: int) -> None:
        """Make random layers draw different numbers than on other ranks; rank 0 keeps its seeds."""

    def seed_early(self, seed: int) -> None:
        """Seed the generator that shuffles data, if ``fit`` uses it before its first callback."""

    def seed(self, seed: int, model: Any = None) -> None:
        """Seed the back end's own generators, and with a model its random layers."""

    def random_state(self) -> Any:
        """Return the states of those generators."""
        return None

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """Set the generators one step after a state, or by a common seed."""

    def attach(self, model: Any, only_weights: bool = False) -> None:
        """Put current values into variables; with ``only_weights`` until the next step."""

    def steps_are_over(self) -> None:
        """Record that a fit has made its last step."""

    def initial_epoch(self, model: Any) -> int:
        """Return the epoch at which a callback makes training resume; 0 if none does."""
        return 0

    def resume_at(self, model: Any, epoch: int) -> None:
        """Make training start at this epoch."""

    def metrics(self, model: Any) -> Metrics:
        raise NotImplementedError

    def silence(self, params: dict[str, Any]) -> None:
        """Turn off the progress bar of a fit, in the parameters of its callbacks."""

    def average(self, worker: Any) -> Any:
        raise NotImplementedError

    def place_gradients(self, model: Any, average: Any, worker: Any) -> None:
        """Choose with all workers whether gradients are averaged on devices; a collective call."""

    def apply_of(self, optimizer_class: type, average: Any) -> dict[str, Any]:
        """Return attributes for a subclass of an optimizer that averages gradients first."""
        raise NotImplementedError

    def steps_taken(self, model: Any) -> int:
        """Return the number of steps of the optimizer."""
        raise NotImplementedError

    def watch_losses(self, model: Any, average: Any) -> BatchLosses:
        """Weight gradients by the divisor of each batch's loss; return the losses to combine."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the host has the losses and gradients of the steps so far."""

    def set_learning_rate(self, model: Any, value: float) -> None:
        raise NotImplementedError


def require_declared(metric: Any, base: type) -> None:
    """Raise unless a metric class of the user declares that it adds up, or only adds."""
    line = type(metric).__mro__
    first_of_keras = next(cls for cls in line if cls.__module__.partition(".")[0] == "keras")
    adds_up = getattr(metric, "adds_up", None)
    if first_of_keras is base and not (only_adds(metric) if adds_up is None else adds_up):
        raise ConfigurationError(
            f"got metric {metric.name!r} of your own class {type(metric).__name__}, whose "
            "update_state does more than self.variable.assign_add(...): if its variables are "
            "sums over samples (totals, counts), those of several workers can be added; declare "
            "this with `adds_up = True` in the class or on the object. A maximum or a last value "
            "cannot be added: compute it in a callback"
        )


def not_additive(metric: str, variable: str) -> ConfigurationError:
    """Return the error for a metric whose state does not start from zero."""
    return ConfigurationError(
        f"metric {metric!r} keeps {variable!r}, which does not start from zero, so it is not a "
        "sum over samples, and the states of several workers cannot be added. Use a metric of "
        "totals and counts, or compute this one in a callback on one worker"
    )
