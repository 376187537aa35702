"""The base class of the back ends of Keras 3."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from platoon_base.dtypes import Array
from platoon_base.sharding import shard_seed
from platoon_plugins.keras.backends import Backend, Metrics, not_additive, require_declared
from platoon_plugins.keras.backends.keras3_losses import batch_weight, require_one_kind, warn_of_added, watched
from platoon_plugins.keras.gradients import Batch, GradientAverage
from platoon_plugins.keras.optimizers import ModelAverages, all_optimizers, optimizers_of
from platoon_plugins.keras.sums import BatchLosses, losses_of

_SEED = "seed_generator_state"
_GLOBAL_GENERATOR = "global_seed_generator"
# Rules by the ``aggregation`` of a variable. For "none" the dtype decides.
_RULES = {"mean": "mean", "sum": "sum", "only_first_replica": "first"}


class KerasVariable:
    """A variable of Keras 3, with the methods of Theano's shared variables; it copies values."""

    def __init__(self, variable: Any) -> None:
        self.name: str = variable.path
        self.dtype: str = keras.backend.standardize_dtype(variable.dtype)
        self.variable = variable
        self._buffer: Array | None = None

    @property
    def rule(self) -> str:
        """The rule for a variable that is not trained; "own" if it differs between workers."""
        if self.name.endswith(_SEED):
            return "own"
        # The unit vector of SpectralNormalization cannot be averaged.
        if self.name.endswith("vector_u"):
            return "first"
        wanted = _RULES.get(str(getattr(self.variable, "aggregation", None)))
        return wanted or ("mean" if _is_float(self.variable) or self.dtype.startswith("complex") else "first")

    def on_host(self) -> bool:
        return True

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """Return the value; its internal type is NumPy's if the value is on the host."""
        if return_internal_type and not self.on_host():
            return self.variable
        return self.view() if borrow else np.array(self.view())

    # The methods that a center needs, see `platoon_base.parameters.Parameter`.

    def borrow(self) -> Array:
        """Return the value in a reused buffer: new memory would take longer than the copy."""
        view = self.view()
        if self._buffer is None:
            self._buffer = np.array(view, order="C")
        else:
            np.copyto(self._buffer, view)
        return self._buffer

    def give_back(self, array: Any) -> None:
        """Set the value to the array that `borrow` or `on_device` returned."""
        self.set_value(array)

    def memory(self) -> Array | None:
        """Return None: the value can only be changed by a copy."""
        return None

    def on_device(self) -> Any:
        """Return None: a center on devices cannot use the value."""

    def view(self) -> Array:
        value: Array = np.asarray(keras.ops.convert_to_numpy(self.variable))
        return value

    def set_value(self, value: Array, borrow: bool = False) -> None:
        self.variable.assign(value)


class Keras3Metrics(Metrics):
    """The metrics of Keras 3, whose variables are the state of all values in ``logs``."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._checked = 0

    def epoch_begins(self) -> None:
        """Check that the state of all metrics is zero."""
        self._checked = len(self._model.metrics_variables)
        for metric in _each(self._model.metrics):
            require_declared(metric, keras.metrics.Metric)
        for metric in self._model.metrics:
            for variable in metric.variables:
                if np.any(keras.ops.convert_to_numpy(variable) != 0):
                    raise not_additive(metric.name, variable.name)

    def train_state(self) -> list[Array]:
        """Return the state of the training metrics; call it before an evaluation resets them."""
        # TensorFlow creates variables in the first step.
        if self._checked != len(self._model.metrics_variables):
            state = self.test_state()
            self._model.reset_metrics()
            self.epoch_begins()
            self._assign(state)
        return self.test_state()

    def test_state(self) -> list[Array]:
        return [np.array(keras.ops.convert_to_numpy(v)) for v in self._model.metrics_variables]

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        self._assign(state)
        flat: dict[str, Any] = {}
        for name, value in self._model.get_metrics_result().items():
            flat.update(value if isinstance(value, dict) else {name: value})
        arrays = {name: keras.ops.convert_to_numpy(value) for name, value in flat.items()}
        return {name: array if np.ndim(array) else float(array) for name, array in arrays.items()}

    def variables(self) -> list[KerasVariable]:
        return [KerasVariable(v) for v in self._model.metrics_variables]

    def results_again(self, state: Sequence[Array]) -> dict[str, Any]:
        now = self.test_state()
        try:
            return self.results(state)
        finally:
            self._assign(now)

    def _assign(self, state: Sequence[Array]) -> None:
        for variable, value in zip(self._model.metrics_variables, state):
            variable.assign(np.asarray(value).astype(keras.backend.standardize_dtype(variable.dtype)))


class Keras3(Backend):
    """Keras 3; derived classes add the differences of torch, JAX and TensorFlow."""

    watches_batches = False
    variable: type[KerasVariable] = KerasVariable

    def trains_together(self, model: Any) -> bool:
        """Return whether a keras.distribution, on JAX, trains on several processes."""
        return keras.distribution.distribution() is not None

    def compiled_with(self, model: Any) -> dict[str, Any]:
        metrics, loss = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
        return {
            "metrics": getattr(metrics, "_user_metrics", None),
            "weighted_metrics": getattr(metrics, "_user_weighted_metrics", None),
            "loss_weights": getattr(loss, "_user_loss_weights", None),
        }

    def weights(self, model: Any) -> list[KerasVariable]:
        return [self.variable(v) for v in model.trainable_variables]

    def statistics(self, model: Any) -> list[Any]:
        # A GAN on JAX has variables of its optimizers among its own.
        others = {id(v) for optimizer in optimizers_of(model) for v in optimizer.variables}
        return [self.variable(v) for v in model.non_trainable_variables if id(v) not in others]

    def optimizer_state(self, model: Any) -> list[KerasVariable]:
        """Return the variables of the optimizers; build that of compile()."""
        compiled_with = getattr(model, "optimizer", None)  # It may be missing before compile().
        if compiled_with is not None and not compiled_with.built:
            compiled_with.build(model.trainable_variables)
        return [self.variable(v) for optimizer in optimizers_of(model) for v in optimizer.variables]

    def moments(self, model: Any) -> list[KerasVariable]:
        shapes = {tuple(v.shape) for v in model.trainable_variables} - {()}
        each = all_optimizers(model)
        added_up = {id(v) for optimizer in each for v in getattr(optimizer, "_accumulated_gradients", None) or ()}
        found = {id(v): v for optimizer in each for v in optimizer.variables if _is_float(v) and id(v) not in added_up}
        return [self.variable(v) for v in found.values() if tuple(v.shape) in shapes]

    def vary_noise(self, model: Any, rank: int) -> None:
        for variable in _seeds(model) if rank else ():
            state = np.array(keras.ops.convert_to_numpy(variable))
            state[0] = shard_seed(int(state[0]), rank) % 2**31
            variable.assign(state)

    def seed(self, seed: int, model: Any = None) -> None:
        """Seed the global generator of Keras; if it does not exist yet, Python's will seed it."""
        generator = global_state.get_global_attribute(_GLOBAL_GENERATOR)
        if generator is not None:
            generator.state.assign(np.array([seed % 2**31, 0]))
        for number, variable in enumerate([] if model is None else _seeds(model)):
            variable.assign(np.array([shard_seed(seed, number) % 2**31, 0]))

    def random_state(self) -> Any:
        generator = global_state.get_global_attribute(_GLOBAL_GENERATOR)
        return None if generator is None else np.array(keras.ops.convert_to_numpy(generator.state))

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        if state is None:
            global_state.set_global_attribute(_GLOBAL_GENERATOR, None)
        else:
            generator = global_state.get_global_attribute(_GLOBAL_GENERATOR)
            generator.state.assign(state)
            generator.next()

    def initial_epoch(self, model: Any) -> int:
        """Return the epoch that BackupAndRestore has stored in the model, or 0."""
        return getattr(model, "_initial_epoch", None) or 0

    def resume_at(self, model: Any, epoch: int) -> None:
        model._initial_epoch = epoch

    def metrics(self, model: Any) -> Keras3Metrics:
        return Keras3Metrics(model)

    def silence(self, params: dict[str, Any]) -> None:
        params["verbose"] = 0

    def average(self, worker: Any) -> GradientAverage:
        return GradientAverage(worker)

    def apply_of(self, optimizer_class: type, average: GradientAverage) -> dict[str, Any]:
        """Return an ``apply`` that averages gradients before Keras's own is called."""
        base: Any = optimizer_class
        # This is `apply` without the check of `refuse_unwrapped_copies`.
        plain_apply = getattr(base.apply, "checked", base.apply)
        loss_weight = LossWeight()

        def averages_of(grads: Sequence[Any]) -> list[Any]:
            return average.average(Batch(grads, loss_weight.take(), [gradient is not None for gradient in grads]))

        def apply(optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            variables = trainable_variables or (() if average.like else optimizer._trainable_variables)
            if variables and not _are_same(variables, average.variables):
                average.expect(variables, [_zeros(variable) for variable in variables])
            return plain_apply(optimizer, averages_of(grads), trainable_variables)

        def stateless_apply(optimizer: Any, variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
            # `expect` is not called, since traced variables must not be stored.
            return base.stateless_apply(optimizer, variables, averages_of(grads), trainable_variables)

        methods: dict[str, Any] = {"apply": apply, "loss_weight": loss_weight}
        # The base class's method calls `apply`; that of LossScaleOptimizer does not.
        if base.stateless_apply is not keras.optimizers.Optimizer.stateless_apply:
            methods["stateless_apply"] = stateless_apply
        return methods

    def watch_losses(self, model: Any, average: ModelAverages | None) -> BatchLosses:
        """Patch ``compute_loss`` to record losses and their divisors."""
        losses = losses_of(model)
        if getattr(model.compute_loss, "average", model) is not average:
            model.compute_loss = self._watched_loss(model, average, losses)
            if model.train_function is not None:  # The step is already traced.
                model.make_train_function(force=True)
            if model.test_function is not None:
                model.make_test_function(force=True)
        return losses

    def _watched_loss(self, model: Any, average: ModelAverages | None, losses: BatchLosses) -> Callable[..., Any]:
        plain = getattr(model.compute_loss, "plain", model.compute_loss)
        # Any of the optimizers, or all, may minimize this loss.
        loss_weights = loss_weights_of(model)
        first = True

        # A model's own method may have other parameters.
        def compute_loss(*args: Any, **options: Any) -> Any:
            nonlocal first
            with watched() as terms:
                loss = plain(*args, **options)
            # The first tensor has the number of rows: x (which a train_step may omit), y or y_pred.
            given = [tensor for tensor in keras.tree.flatten((args, options)) if getattr(tensor, "shape", None)]
            if any(isinstance(tensor, keras.KerasTensor) for tensor in given):
                return loss  # Keras only asks for shapes.
            training = options.get("training", args[4] if len(args) > 4 else None)
            rows = keras.ops.shape(given[0])[0] if given else 1
            weight = batch_weight(terms, rows, model)
            if average is not None and training is not False:
                require_one_kind(weight, terms)
                # It runs only once, as it takes milliseconds for a deep model.
                if first:
                    first = False
                    warn_of_added(model)
                for loss_weight in loss_weights:
                    loss_weight.put(None if weight.kind in ("sum", "values") else weight.weight)
            if weight.kind in ("tokens", "sum"):
                is_sum = weight.kind == "sum"
                self.call_on_host(
                    lambda value, divisor, count: losses.add(value, None if is_sum else divisor, count, training),
                    [loss, weight.weight, rows],
                    model,
                )
            return loss

        compute_loss.plain = plain  # type: ignore[attr-defined]
        compute_loss.average = average  # type: ignore[attr-defined]
        return compute_loss

    def call_on_host(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        """Call a function of the host with the values of scalars, in each step."""
        raise NotImplementedError

    def steps_taken(self, model: Any) -> int:
        return int(keras.ops.convert_to_numpy(model.optimizer.iterations))

    def set_learning_rate(self, model: Any, value: float) -> None:
        self.attach(model)
        model.optimizer.learning_rate = value


class LossWeight:
    """Passes the divisor of a batch's loss from ``compute_loss`` to ``apply`` of one optimizer."""

    # The weight is None for a loss that is a sum, until another loss is computed. It is 1 if no
    # loss was computed.

    def __init__(self) -> None:
        self._weight: Any = 1.0

    def put(self, weight: Any) -> None:
        self._weight = weight

    def peek(self) -> Any:
        return self._weight

    def take(self) -> Any:
        """Return the weight of the current gradients, and reset it to 1 unless it is None."""
        weight = self._weight
        if weight is not None:
            self._weight = 1.0
        return weight


def loss_weights_of(model: Any) -> list[LossWeight]:
    """Return the `LossWeight` of each optimizer of a model that averages gradients."""
    found = (getattr(type(optimizer), "loss_weight", None) for optimizer in optimizers_of(model))
    return [loss_weight for loss_weight in found if loss_weight is not None]


def _are_same(variables: Sequence[Any], known: Sequence[Any]) -> bool:
    return len(variables) == len(known) and all(map(operator.is_, variables, known))


def _seeds(model: Any) -> list[Any]:
    return [v for v in model.non_trainable_variables if v.path.endswith(_SEED)]


def _zeros(variable: Any) -> Array:
    return np.zeros(tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype))


def _each(metrics: Sequence[Any]) -> Iterator[Any]:
    """Yield metrics, including those in the container of compile()."""
    for metric in metrics:
        yield from _each(metric.metrics) if getattr(metric, "metrics", None) else [metric]


def _is_float(variable: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(variable.dtype))
