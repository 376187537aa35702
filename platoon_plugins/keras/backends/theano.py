"""Keras 2.3.1 on Theano: the compiled function averages gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import keras.backend as K  # noqa: N812 - Keras's own idiom
import numpy as np
import theano

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops import all_reduce, vary_noise_once
from platoon_base.worker import warn_once
from platoon_plugins.keras.backends import Backend, Metrics, not_additive, require_declared
from platoon_plugins.keras.gradients import NOT_ATTACHED, GradientAverage
from platoon_plugins.keras.optimizers import ModelAverages
from platoon_plugins.keras.sums import ADDED, BatchLosses, losses_of


class _Theano(Backend):
    """Keras 2 on Theano; `resuming` patches the training loops to set the first epoch."""

    watches_batches = True
    honors_initial_epoch = False
    lets_steps_choose_logs = False

    def require_trainable(self, model: Any, averaged: bool) -> None:
        if not getattr(model, "optimizer", None):
            raise ConfigurationError("got a model that is not compiled: call model.compile(...) before fit")

    def compiled_with(self, model: Any) -> dict[str, Any]:
        names = {"metrics": "_compile_metrics", "weighted_metrics": "_compile_weighted_metrics"}
        return {name: getattr(model, names.get(name, name), None) for name in (*names, "loss_weights")}

    def weights(self, model: Any) -> list[Any]:
        # These are the weights that the compiled function trains.
        return list(model._collected_trainable_weights)

    def statistics(self, model: Any) -> list[Any]:
        trained = {id(weight) for weight in self.weights(model)}
        return [w for w in model.weights if id(w) not in trained]

    def optimizer_state(self, model: Any) -> list[Any]:
        model._make_train_function()  # This creates the state, once.
        options = (
            value for value in vars(model.optimizer).values() if isinstance(value, theano.compile.SharedVariable)
        )
        return list({id(v): v for v in (*model.optimizer.weights, *options)}.values())

    def moments(self, model: Any) -> list[Any]:
        shapes = {w.get_value(borrow=True).shape for w in self.weights(model)} - {()}
        return [v for v in self.optimizer_state(model) if v.get_value(borrow=True).shape in shapes]

    def vary_noise(self, model: Any, rank: int) -> None:
        vary_noise_once(model.train_function.function.get_shared(), rank)

    def metrics(self, model: Any) -> _Metrics:
        return _Metrics(model)

    def silence(self, params: dict[str, Any]) -> None:
        params["verbose"] = 0
        # A silent ProgbarLogger reads `target`, but never sets it.
        keras.callbacks.ProgbarLogger.target = float("inf")

    def average(self, worker: Any) -> GradientAverage:
        return _InGraph(worker)

    def apply_of(self, optimizer_class: type, average: _InGraph) -> dict[str, Callable[..., Any]]:
        """Return a ``get_gradients`` that averages those of Keras before they are clipped."""
        base: Any = optimizer_class

        def get_gradients(optimizer: Any, loss: Any, params: Any) -> list[Any]:
            weight = average.graph_weight(loss)
            limits = {name: vars(optimizer).pop(name) for name in ("clipnorm", "clipvalue") if name in vars(optimizer)}
            try:
                gradients = base.get_gradients(optimizer, loss * weight, params)
            finally:
                vars(optimizer).update(limits)
            return _clipped(average.graph(gradients, weight), **limits)

        def get_updates(optimizer: Any, loss: Any, params: Any) -> list[Any]:
            updates = base.get_updates(optimizer, loss, params)
            updates.append(average.update())
            return updates

        return {"get_gradients": get_gradients, "get_updates": get_updates}

    def watch_losses(self, model: Any, average: ModelAverages | None) -> BatchLosses:
        """Configure the averages for losses that are sums, or means over all rows."""
        sums = {function.reduction == "sum" for function in model.loss_functions if function is not None}
        if average is not None:
            if len(sums | ({False} if model.losses else set())) > 1:
                raise ConfigurationError(
                    'got losses with reduction="sum" besides others, including losses of '
                    "layers such as regularizers: no average of the workers' gradients is the "
                    "gradient of one process on all their rows; compile with "
                    'reduction="sum_over_batch_size"'
                )
            members: Sequence[Any] = average.members
            for member in members:
                member.add_up(sums == {True})
            if any(map(_depends_on_batch, model.losses)):
                warn_once(ADDED.replace("keras.ops.shape(x)[0]", "K.shape(x)[0]").replace(*_OF_KERAS_2))
        return losses_of(model)

    def steps_taken(self, model: Any) -> int:
        return int(K.get_value(model.optimizer.iterations))

    def set_learning_rate(self, model: Any, value: float) -> None:
        K.set_value(model.optimizer.lr, value)


# Unlike Keras 3, Keras 2 does not divide the losses of an activity_regularizer by the rows.
_OF_KERAS_2 = "(add_loss)", "(add_loss, activity_regularizer)"


def _depends_on_batch(loss: Any) -> bool:
    """Return whether a loss depends on data, unlike that of a kernel_regularizer."""
    inputs = theano.gof.graph.inputs([loss]) if hasattr(loss, "owner") else []
    return any(not isinstance(v, (theano.compile.SharedVariable, theano.Constant)) for v in inputs)


def _clipped(gradients: list[Any], clipnorm: float = 0.0, clipvalue: float = 0.0) -> list[Any]:
    if clipnorm > 0:
        norm = K.sqrt(sum(K.sum(K.square(g)) for g in gradients))
        gradients = [keras.optimizers.clip_norm(g, clipnorm, norm) for g in gradients]
    if clipvalue > 0:
        gradients = [K.clip(g, -clipvalue, clipvalue) for g in gradients]
    return gradients


class _InGraph(GradientAverage):
    """Averages gradients by one Theano Op; shared variables contain the flags."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._header_in = theano.shared(self._mine.array, "flag of this rank", borrow=True)
        self._header_out = theano.shared(self._all.array.copy(), "flags and weights of all ranks")
        self._sums = theano.shared(np.int8(0), "whether losses are sums")
        self._ready = theano.shared(np.int8(0), "whether a fit has prepared the model")
        self._reduced: Any = None
        self._idle: Any = None
        self._idle_gradients: Any = None

    def attach(self, policy: str, like: Sequence[Array], calls: list[GradientAverage] | None = None) -> None:
        super().attach(policy, like, calls)
        self._ready.set_value(np.int8(1))

    def detach(self) -> None:
        super().detach()
        self._ready.set_value(np.int8(0))

    def add_up(self, sums: bool) -> None:
        """Set whether the loss is a sum; gradients are then summed."""
        self._sums.set_value(np.int8(sums))

    def graph_weight(self, loss: Any) -> Any:
        """Return the weight of a loss: the rows of the batch, its divisor; 1 for a sum."""
        inputs = [v for v in theano.gof.graph.inputs([loss]) if v.owner is None and hasattr(v, "_keras_shape")]
        batches = [v for v in inputs if v.ndim and not isinstance(v, theano.compile.SharedVariable)]
        rows = theano.tensor.cast(batches[0].shape[0], "float32") if batches else theano.tensor.constant(1.0, "float32")
        return theano.tensor.switch(theano.tensor.eq(self._sums, 1), np.float32(1), rows)

    def graph(self, gradients: Sequence[Any], weight: Any) -> list[Any]:
        """Return expressions for the averages of the gradients of the weighted loss."""
        checked = theano.tensor.opt.Assert(NOT_ATTACHED)(self._header_in, theano.tensor.eq(self._ready, 1))
        size = self.worker.global_size
        header = theano.tensor.set_subtensor(checked[self.worker.global_rank], weight)
        means: list[Any] = []
        if self._compresses:
            (header,) = all_reduce(header, op="mean", worker=self.worker)
        else:
            *means, header = all_reduce(*gradients, header, op="mean", worker=self.worker)
        self._reduced = header * np.float32(size)
        total = self._reduced[:size].sum()
        # The switch hides the divisor from Theano, which would divide each weight's update.
        factor = np.float32(1 if self._compresses else size)
        scale = theano.tensor.switch(theano.tensor.eq(self._sums, 1), factor, factor / total)
        scaled = [value * theano.tensor.cast(scale, value.dtype) for value in means or gradients]
        if not self._compresses or not scaled:
            return scaled
        return all_reduce(*scaled, op="sum", worker=self.worker, compress=True)

    def update(self) -> tuple[Any, Any]:
        """Return the update that stores the header of all ranks in a shared variable."""
        return self._header_out, self._reduced

    def count(self, steps: int) -> None:
        self.steps += steps

    def _expect(self, like: Sequence[Array]) -> None:
        # The header stays, as the compiled function fixes the gradients.
        self.like = like

    def send(self, flag: float) -> float:
        before = super().send(flag)
        self._header_in.set_value(self._mine.array)
        return before

    def _latest(self) -> Array:
        seen: Array = np.rint(self._header_out.get_value(borrow=True)[self.worker.global_size :])
        return seen

    def _call_without_gradients(self) -> None:
        if self._idle is None:
            zeros = [theano.shared(array) for array in self.like]
            alone = [] if self._compresses else zeros
            *others, header = all_reduce(*alone, self._header_in, op="mean", worker=self.worker)
            update = (self._header_out, header * np.float32(self.worker.global_size))
            self._idle = theano.function([], [output.sum() for output in (*others, header)], updates=[update])
            if self._compresses and zeros:
                outputs = all_reduce(*zeros, op="sum", worker=self.worker, compress=True)
                self._idle_gradients = theano.function([], [output.sum() for output in outputs])
        self._idle()
        # Nobody uses the result without a batch, so residuals would be lost.
        weights = self._header_out.get_value(borrow=True)[: self.worker.global_size]
        if self._idle_gradients is not None and weights.any():
            self._idle_gradients()


class _Metrics(Metrics):
    """The metrics of Keras 2: the mean loss over samples from ``logs``, and metric objects."""

    # An evaluation resets metrics before on_test_begin: the training state is copied at each batch.

    def __init__(self, model: Any) -> None:
        self._model = model
        self._metrics = model._get_training_eval_metrics()
        self._variables = [weight for metric in self._metrics for weight in metric.weights]
        self._results: Any = None
        self._train: list[Array] = []
        self._train_loss = np.zeros(2)
        self._test_loss = np.zeros(2)

    def epoch_begins(self) -> None:
        """Check that the state of all metrics is zero."""
        for metric in self._metrics:
            require_declared(metric, keras.metrics.Metric)
            for weight in metric.weights:
                if np.any(weight.get_value(borrow=True) != 0):
                    raise not_additive(metric.name, weight.name)
        self._train_loss[:] = 0
        self._train = self._values()

    def train_batch(self, logs: Mapping[str, Any]) -> None:
        self._train_loss += float(logs["loss"]) * logs["size"], logs["size"]
        self._train = self._values()
        self._keep(logs, training=True)

    def test_begins(self) -> None:
        self._test_loss[:] = 0

    def test_batch(self, logs: Mapping[str, Any]) -> None:
        self._test_loss += float(logs["loss"]) * logs["size"], logs["size"]
        self._keep(logs, training=False)

    def train_state(self) -> list[Array]:
        return [self._train_loss, *self._train]

    def test_state(self) -> list[Array]:
        return [self._test_loss, *self._values()]

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        (total, weight), *values = state
        own = self._values()
        self._assign(values)
        if self._results is None:
            self._results = K.function([], [metric.result() for metric in self._metrics])
        others = self._results([]) if self._metrics else []
        # An evaluation has already reset the metrics: keep their values.
        self._assign(own)
        loss = total / weight if weight else np.nan
        return dict(zip(self._model.metrics_names, map(float, (loss, *others))))

    def variables(self) -> list[Any]:
        return self._variables

    def _keep(self, logs: Mapping[str, Any], training: bool) -> None:
        functions = [function for function in self._model.loss_functions if function is not None]
        if not self._model.losses and all(function.reduction == "sum" for function in functions):
            losses_of(self._model).add(logs["loss"], None, logs["size"], training)

    def _assign(self, values: Sequence[Array]) -> None:
        for variable, value in zip(self._variables, values):
            variable.set_value(np.asarray(value, dtype=K.dtype(variable)))

    def _values(self) -> list[Array]:
        return [np.array(variable.get_value(borrow=True)) for variable in self._variables]


def backend() -> _Theano:
    return _Theano()
