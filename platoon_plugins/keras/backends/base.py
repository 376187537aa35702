"""The protocol by which the adapter uses a back end of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.adding import only_adds
from platoon_plugins.keras.batch_losses import BatchLosses

__all__ = ["Backend", "Metrics", "Variable", "not_additive", "require_declared"]

Array = np.ndarray[Any, Any]


class Variable(Protocol):
    """A variable of a model, with the methods of Theano's shared variables.

    Attributes
    ----------
    name, dtype : str
    """

    name: str
    dtype: str

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """Return the value; with ``borrow`` its memory itself, where that is possible."""
        ...

    def set_value(self, value: Array, borrow: bool = False) -> None:
        """Change the value."""
        ...


class Metrics(Protocol):
    """The state of the metrics in ``logs``, as arrays that can be summed over workers.

    Derived classes override the hooks that they need.
    """

    def epoch_begins(self) -> None:
        """Record the start of an epoch, at which Keras has reset all metrics.

        Raises
        ------
        ConfigurationError
            If the state of a metric cannot be summed over workers.
        """
        ...

    def train_batch(self, logs: Mapping[str, Any]) -> None:
        """Record the end of a training batch."""

    def test_begins(self) -> None:
        """Record the start of an evaluation."""

    def test_batch(self, logs: Mapping[str, Any]) -> None:
        """Record the end of a batch of an evaluation."""

    def train_state(self) -> list[Array]:
        """Return the state of the training metrics, at the end of an epoch's batches."""
        ...

    def test_state(self) -> list[Array]:
        """Return the state of the metrics at the end of an evaluation."""
        ...

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        """Return the values to log for a state: numbers, and arrays for metrics whose result is one."""
        ...

    def variables(self) -> list[Variable]:
        """Return the variables of the metrics."""
        ...

    def results_again(self, state: Sequence[Array]) -> dict[str, Any]:
        """Return the results for another state, and leave the metrics as they are."""
        raise NotImplementedError


class Backend(Protocol):
    """One back end of Keras; derived classes override the hooks that they need.

    Attributes
    ----------
    watches_batches : bool
        Whether its `Metrics` must be called at the end of every batch.
    honors_initial_epoch : bool
        Whether a callback can change the first epoch of a fit, by `resume_at`.
    lets_steps_choose_logs : bool
        Whether a ``train_step`` of the model's own class decides what ``logs`` have.
    """

    watches_batches: bool
    honors_initial_epoch = True
    lets_steps_choose_logs = True

    def require_trainable(self, model: Any, averaged: bool) -> None:
        """Raise `ConfigurationError` if the model cannot be trained here; ``averaged`` if gradients are averaged."""
        ...

    def trains_together(self, model: Any) -> bool:
        """Return whether Keras itself trains a model on several processes at once."""
        return False

    def compiled_with(self, model: Any) -> dict[str, Any]:
        """Return the arguments of compile(), except optimizer and loss, that must be the same on all workers."""
        return {}

    def weights(self, model: Any) -> list[Variable]:
        """Return the trainable weights, which the rule synchronizes."""
        ...

    def statistics(self, model: Any) -> list[Variable]:
        """Return the other state of the layers, of any dtype: running statistics, frozen weights, counters.

        And the seeds of random layers, whose ``rule`` is "own".
        """
        ...

    def optimizer_state(self, model: Any) -> list[Variable]:
        """Return the variables of the optimizer, including learning rate and counters."""
        ...

    def moments(self, model: Any) -> list[Variable]:
        """Return the moments of the built optimizers: their float state with the shape of a weight.

        Accumulated gradients are excluded, and so are scalars, as some are counters or learning rates.
        """
        ...

    def vary_noise(self, model: Any, rank: int) -> None:
        """Make the random layers of this worker's model draw different numbers than those of other ranks.

        Their seeds are equal on all workers before. Those of rank 0 stay.
        """
        ...

    def seed_early(self, seed: int) -> None:
        """Seed the generator that shuffles data, if ``fit`` uses it before it calls its first callback."""

    def seed(self, seed: int, model: Any = None) -> None:
        """Seed the back end's own generators, which shuffle data and draw noise without a seed.

        With a model also its random layers, where their generators are variables of it.
        """

    def random_state(self) -> Any:
        """Return the states of those generators."""
        return None

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """Set the generators one step after a state, or by a common seed, so that the next fit draws other numbers."""

    def attach(self, model: Any, only_weights: bool = False) -> None:
        """Ensure, within an epoch, that variables have the current values and that changes of them take effect.

        With ``only_weights`` until the next step, and only for what `weights` and `moments` return.
        """

    def steps_are_over(self) -> None:
        """Record that a fit has made its last step."""

    def initial_epoch(self, model: Any) -> int:
        """Return the epoch at which a callback makes training resume; 0 if none does."""
        return 0

    def resume_at(self, model: Any, epoch: int) -> None:
        """Make training start at this epoch."""

    def metrics(self, model: Any) -> Metrics:
        """Return the metrics of a compiled model."""
        ...

    def silence(self, params: dict[str, Any]) -> None:
        """Turn off the progress bar of a fit, in the parameters that its callbacks get next."""
        ...

    def average(self, worker: Any) -> Any:
        """Make the `GradientAverage` of an optimizer."""
        ...

    def place_gradients(self, model: Any, average: Any, worker: Any) -> None:
        """Decide with the other workers whether gradients are averaged on devices or the host; a collective call."""

    def apply_of(self, optimizer_class: type, average: Any) -> dict[str, Any]:
        """Return the attributes of a subclass of an optimizer that averages gradients before any other use."""
        ...

    def steps_taken(self, model: Any) -> int:
        """Return the number of steps that the optimizer has made."""
        ...

    def watch_losses(self, model: Any, average: Any) -> BatchLosses:
        """Weight gradients and losses by the divisor of each batch's loss.

        Parameters
        ----------
        model : keras.Model
        average : ModelAverages or None

        Returns
        -------
        BatchLosses
            The losses of the model's batches that are not means over rows.
        """
        ...

    def settle(self) -> None:
        """Wait until the host has received the losses and gradients of the steps so far."""

    def set_learning_rate(self, model: Any, value: float) -> None:
        """Change the optimizer's learning rate."""
        ...


def require_declared(metric: Any, base: type) -> None:
    """Raise `ConfigurationError` for a metric class of the user, unless its state can be summed.

    It declares that, or only adds to its variables. A class derived from a metric of Keras, such as `Mean`, is taken to
    keep its state as that metric does.
    """
    line = type(metric).__mro__
    first_of_keras = next(cls for cls in line if cls.__module__.partition(".")[0] == "keras")
    adds_up = getattr(metric, "adds_up", None)
    if first_of_keras is base and not (only_adds(metric) if adds_up is None else adds_up):
        raise ConfigurationError(
            f"got metric {metric.name!r} of a class of your own, {type(metric).__name__}, whose update_state does more "
            "than self.variable.assign_add(...): if its variables are sums "
            "over samples (totals, counts), those of several workers are added up to that of all the data; say so by "
            "`adds_up = True` in the class or on the object. Of a maximum or a last value that is not true: compute "
            "those in a callback"
        )


def not_additive(metric: str, variable: str) -> ConfigurationError:
    """Return the error for a metric whose state does not start from zero."""
    return ConfigurationError(
        f"metric {metric!r} keeps {variable!r}, which does not start from zero: it is no sum over samples, so the "
        "states of several workers cannot be added up to that of all the data. Use a metric made of totals and counts, "
        "or compute this one in a callback on one worker"
    )
