"""The protocol of a back end of Keras, as the adapter needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.errors import ConfigurationError
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
        """Return the value; if ``borrow``, the memory itself where that can be had."""
        ...

    def set_value(self, value: Array, borrow: bool = False) -> None:
        """Change the value."""
        ...


class Metrics(Protocol):
    """The state behind the values in ``logs``, as arrays that may be added up over workers.

    Derived classes leave out the hooks at which they have nothing to do.
    """

    def epoch_begins(self) -> None:
        """Take in the begin of an epoch, with all metrics just reset.

        Raises
        ------
        ConfigurationError
            If the state of one cannot be added up.
        """
        ...

    def train_batch(self, logs: Mapping[str, Any]) -> None:
        """Take in the end of a training batch."""

    def test_begins(self) -> None:
        """Take in the begin of an evaluation."""

    def test_batch(self, logs: Mapping[str, Any]) -> None:
        """Take in the end of a batch of an evaluation."""

    def train_state(self) -> list[Array]:
        """Return the state of the training metrics, at the end of an epoch's batches."""
        ...

    def test_state(self) -> list[Array]:
        """Return the state of the metrics at the end of an evaluation."""
        ...

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        """Return what is logged for a state: numbers, and arrays where a metric gives one."""
        ...


class Backend(Protocol):
    """One back end of Keras; derived classes leave out the hooks for which nothing has to be done there.

    Attributes
    ----------
    watches_batches : bool
        Whether its `Metrics` need to see the end of every batch.
    honors_initial_epoch : bool
        Whether a callback can make a fit begin at another epoch, by `resume_at`.
    """

    watches_batches: bool
    honors_initial_epoch = True

    def require_trainable(self, model: Any, averaged: bool) -> None:
        """Raise `ConfigurationError` if the model cannot be trained here; ``averaged`` if gradients are averaged."""
        ...

    def trains_together(self, model: Any) -> bool:
        """Return whether Keras itself trains a model on several processes at once."""
        return False

    def compiled_with(self, model: Any) -> dict[str, Any]:
        """Return what compile() was given, beside optimizer and loss, that has to be the same on all workers."""
        return {}

    def weights(self, model: Any) -> list[Variable]:
        """Return the trainable weights, which follow the synchronization rule."""
        ...

    def statistics(self, model: Any) -> list[Variable]:
        """Return the other float state, which is averaged: running statistics of BatchNormalization and the like."""
        ...

    def optimizer_state(self, model: Any) -> list[Variable]:
        """Return the variables of the optimizer, learning rate and counters included."""
        ...

    def moments(self, model: Any) -> list[Variable]:
        """Return the state of the built optimizers that has the shape of a weight, gradients being added up left out.

        Scalars are left out too: some are counters or learning rates.
        """
        ...

    def vary_noise(self, model: Any, rank: int) -> None:
        """Let the random layers of this worker's model draw other numbers than those of other ranks."""
        ...

    def seed_early(self, seed: int) -> None:
        """Seed the generator that shuffles data, where ``fit`` asks it before it calls its first callback."""

    def seed(self, seed: int) -> None:
        """Seed the back end's own generators, which shuffle data and draw noise without a seed."""

    def random_state(self) -> Any:
        """Return where those generators stand."""
        return None

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """Set them one step after a state, or by a seed that all workers share: the next fit draws other numbers."""

    def attach(self, model: Any) -> None:
        """Make sure, within an epoch, that the variables hold the present values and that writes to them count."""

    def steps_are_over(self) -> None:
        """Record that a fit has made its last step."""

    def initial_epoch(self, model: Any) -> int:
        """Return the epoch at which a callback wants training to resume, 0 if none does."""
        return 0

    def resume_at(self, model: Any, epoch: int) -> None:
        """Let training begin at this epoch."""

    def metrics(self, model: Any) -> Metrics:
        """Return the metrics of a model that is compiled."""
        ...

    def silence(self, params: dict[str, Any]) -> None:
        """Turn the progress bar of a fit off, by the parameters that its callbacks are about to read."""
        ...

    def average(self, worker: Any) -> Any:
        """Make what averages the gradients of an optimizer here: a `GradientAverage`."""
        ...

    def place_gradients(self, model: Any, average: Any, worker: Any) -> None:
        """Agree with the other workers where gradients are averaged, if not on the host; a collective call."""

    def apply_of(self, optimizer_class: type, average: Any) -> dict[str, Any]:
        """Return the attributes of a subclass of an optimizer that averages gradients before anything else."""
        ...

    def steps_taken(self, model: Any) -> int:
        """Return how many steps the optimizer has made."""
        ...

    def watch_losses(self, model: Any, average: Any) -> BatchLosses:
        """Weigh gradients and losses by the number that the loss of each batch is divided by.

        Parameters
        ----------
        model : keras.Model
        average : ModelAverages or None

        Returns
        -------
        BatchLosses
            Of the model: its losses that are no means over rows.
        """
        ...

    def settle(self) -> None:
        """Wait until the host has received the losses and gradients of the steps so far."""

    def set_learning_rate(self, model: Any, value: float) -> None:
        """Change the optimizer's learning rate."""
        ...


def require_declared(metric: Any, base: type) -> None:
    """Raise `ConfigurationError` for a metric class of the user's own, unless it says that its state adds up.

    One that is derived from a metric of Keras, such as `Mean`, keeps its state as that does.
    """
    line = type(metric).__mro__
    first_of_keras = next(cls for cls in line if cls.__module__.partition(".")[0] == "keras")
    if first_of_keras is base and not getattr(metric, "adds_up", False):
        raise ConfigurationError(
            f"got metric {metric.name!r} of a class of your own, {type(metric).__name__}: if its variables are sums "
            "over samples (totals, counts), those of several workers are added up to that of all the data; say so by "
            "`adds_up = True` in the class or on the object. Of a maximum or a last value that is not true: compute "
            "those in a callback"
        )


def not_additive(metric: str, variable: str) -> ConfigurationError:
    """Make the error about a metric whose state does not begin with zeros."""
    return ConfigurationError(
        f"metric {metric!r} keeps {variable!r}, which does not start from zero: it is no sum over samples, so the "
        "states of several workers cannot be added up to that of all the data. Use a metric made of totals and counts, "
        "or compute this one in a callback on one worker"
    )
