"""Keras 2.3.1 on Theano: weights are shared variables, gradients are averaged inside the compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import keras.backend as K  # noqa: N812 - Keras's own idiom
import numpy as np
import theano

from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops import all_reduce
from platoon_base.theano_ops.noise import vary_noise
from platoon_plugins.keras.backends.base import Backend, Metrics, not_additive, require_declared
from platoon_plugins.keras.gradients import NOT_ATTACHED, GradientAverage

__all__ = ["backend"]

Array = np.ndarray[Any, Any]


class _Theano(Backend):
    """See `Backend`. Keras 2 has no callback that resumes: the user passes initial_epoch."""

    watches_batches = True

    def require_trainable(self, model: Any, averaged: bool) -> None:
        """See `Backend.require_trainable`."""
        if not getattr(model, "optimizer", None):
            raise ConfigurationError("got a model that is not compiled: call model.compile(...) before fit")

    def weights(self, model: Any) -> list[Any]:
        """See `Backend.weights`."""
        return list(model._collected_trainable_weights)  # those that the compiled function trains

    def statistics(self, model: Any) -> list[Any]:
        """See `Backend.statistics`: frozen weights are among them, alike on all workers, and stay so."""
        trained = {id(weight) for weight in self.weights(model)}
        return [w for w in model.weights if id(w) not in trained and K.dtype(w).startswith("float")]

    def optimizer_state(self, model: Any) -> list[Any]:
        """See `Backend.optimizer_state`."""
        model._make_train_function()  # which makes it, once
        options = (
            value for value in vars(model.optimizer).values() if isinstance(value, theano.compile.SharedVariable)
        )
        return list({id(v): v for v in (*model.optimizer.weights, *options)}.values())

    def vary_noise(self, model: Any, rank: int) -> None:
        """See `Backend.vary_noise`."""
        vary_noise(model.train_function.function.get_shared(), rank)

    def metrics(self, model: Any) -> _Metrics:
        """See `Backend.metrics`."""
        return _Metrics(model)

    def silence(self, params: dict[str, Any]) -> None:
        """See `Backend.silence`."""
        params["verbose"] = 0
        keras.callbacks.ProgbarLogger.target = float("inf")  # a silent one reads it, and never sets it

    def average(self, worker: Any) -> GradientAverage:
        """See `Backend.average`."""
        return _InGraph(worker)

    def apply_of(self, optimizer_class: type, average: _InGraph) -> dict[str, Callable[..., Any]]:
        """See `Backend.apply_of`: ``get_gradients`` clips, so it is asked without, and clipping follows."""
        base: Any = optimizer_class

        def get_gradients(optimizer: Any, loss: Any, params: Any) -> list[Any]:
            limits = {name: vars(optimizer).pop(name) for name in ("clipnorm", "clipvalue") if name in vars(optimizer)}
            try:
                gradients = base.get_gradients(optimizer, loss, params)
            finally:
                vars(optimizer).update(limits)
            return _clipped(average.graph(gradients), **limits)

        def get_updates(optimizer: Any, loss: Any, params: Any) -> list[Any]:
            updates = base.get_updates(optimizer, loss, params)
            updates.append(average.update())
            return updates  # type: ignore[no-any-return]

        return {"get_gradients": get_gradients, "get_updates": get_updates}

    def steps_taken(self, model: Any) -> int:
        """See `Backend.steps_taken`."""
        return int(K.get_value(model.optimizer.iterations))

    def set_learning_rate(self, model: Any, value: float) -> None:
        """See `Backend.set_learning_rate`."""
        K.set_value(model.optimizer.lr, value)


def _clipped(gradients: list[Any], clipnorm: float = 0.0, clipvalue: float = 0.0) -> list[Any]:
    """Clip as Keras's optimizers do."""
    if clipnorm > 0:
        norm = K.sqrt(sum(K.sum(K.square(g)) for g in gradients))
        gradients = [keras.optimizers.clip_norm(g, clipnorm, norm) for g in gradients]
    if clipvalue > 0:
        gradients = [K.clip(g, -clipvalue, clipvalue) for g in gradients]
    return gradients


class _InGraph(GradientAverage):
    """Averages gradients by one Theano Op; the flags come and go by shared variables."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._flags_in = theano.shared(self._flags, "flags of this rank", borrow=True)
        self._flags_out = theano.shared(self._seen.copy(), "flags of all ranks")
        self._ready = theano.shared(np.int8(0), "whether a fit has prepared the model")
        self._reduced: Any = None
        self._idle: Any = None

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """See `GradientAverage.attach`."""
        super().attach(policy, like)
        self._ready.set_value(np.int8(1))

    def detach(self) -> None:
        """See `GradientAverage.detach`."""
        super().detach()
        self._ready.set_value(np.int8(0))

    def graph(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the averages as expressions."""
        checked = theano.tensor.opt.Assert(NOT_ATTACHED)(self._flags_in, theano.tensor.eq(self._ready, 1))
        *means, flags = all_reduce(*gradients, checked, op="mean", worker=self.worker)
        size = self.worker.global_size
        self._reduced = flags * np.float32(size)
        done = theano.tensor.eq(theano.tensor.round(self._reduced), np.float32(2.0)).sum(dtype="float32")
        # Theano would divide each weight's update by the denominator, if it could see that there is one.
        scale = theano.tensor.switch(theano.tensor.eq(done, 0), np.float32(1), size / (np.float32(size) - done))
        return [mean * theano.tensor.cast(scale, mean.dtype) for mean in means]

    def update(self) -> tuple[Any, Any]:
        """Return the update by which the flags of all ranks get out of the function."""
        return self._flags_out, self._reduced

    def count(self, steps: int) -> None:
        """Take note of steps that the compiled function made."""
        self.steps += steps

    def _send(self, flag: float) -> None:
        super()._send(flag)
        self._flags_in.set_value(self._flags)

    def _latest(self) -> Array:
        seen: Array = np.rint(self._flags_out.get_value(borrow=True))
        return seen

    def _call_without_gradients(self) -> None:
        if self._idle is None:
            zeros = [theano.shared(array) for array in self._like]
            *_, flags = outputs = all_reduce(*zeros, self._flags_in, op="mean", worker=self.worker)
            update = (self._flags_out, flags * np.float32(self.worker.global_size))
            self._idle = theano.function([], [output.sum() for output in outputs], updates=[update])
        self._idle()


class _Metrics(Metrics):
    """The loss is a mean over samples that Keras keeps to itself; the other values come from metric objects.

    An evaluation resets their state before it calls on_test_begin, so that of training is copied at every batch.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._metrics = model._get_training_eval_metrics()
        self._variables = [weight for metric in self._metrics for weight in metric.weights]
        self._results: Any = None
        self._train: list[Array] = []
        self._train_loss = np.zeros(2)
        self._test_loss = np.zeros(2)

    def epoch_begins(self) -> None:
        """See `Metrics.epoch_begins`: sums and counts start from zero."""
        for metric in self._metrics:
            require_declared(metric, keras.metrics.Metric)
            for weight in metric.weights:
                if np.any(weight.get_value(borrow=True) != 0):
                    raise not_additive(metric.name, weight.name)
        self._train_loss[:] = 0
        self._train = self._values()

    def train_batch(self, logs: Mapping[str, Any]) -> None:
        """See `Metrics.train_batch`."""
        self._train_loss += float(logs["loss"]) * logs["size"], logs["size"]
        self._train = self._values()

    def test_begins(self) -> None:
        """See `Metrics.test_begins`."""
        self._test_loss[:] = 0

    def test_batch(self, logs: Mapping[str, Any]) -> None:
        """See `Metrics.test_batch`."""
        self._test_loss += float(logs["loss"]) * logs["size"], logs["size"]

    def train_state(self) -> list[Array]:
        """See `Metrics.train_state`."""
        return [self._train_loss, *self._train]

    def test_state(self) -> list[Array]:
        """See `Metrics.test_state`."""
        return [self._test_loss, *self._values()]

    def results(self, state: Sequence[Array]) -> dict[str, Any]:
        """See `Metrics.results`."""
        (total, weight), *values = state
        own = self._values()
        self._assign(values)
        if self._results is None:
            self._results = K.function([], [metric.result() for metric in self._metrics])
        others = self._results([]) if self._metrics else []
        self._assign(own)  # an evaluation that begins now has reset them already
        loss = total / weight if weight else np.nan
        return dict(zip(self._model.metrics_names, map(float, (loss, *others))))

    def _assign(self, values: Sequence[Array]) -> None:
        for variable, value in zip(self._variables, values):
            variable.set_value(np.asarray(value, dtype=K.dtype(variable)))

    def _values(self) -> list[Array]:
        return [np.array(variable.get_value(borrow=True)) for variable in self._variables]


def backend() -> _Theano:
    """Return the back end."""
    return _Theano()
