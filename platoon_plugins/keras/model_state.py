"""The state of a model that workers keep equal, and what they require of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from platoon_base import Worker, connect
from platoon_base.dtypes import FLOATS
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import checksum
from platoon_base.rules import shares_moments, waits
from platoon_base.worker import checksums, copy_first_values, make_equal
from platoon_plugins.keras import backends
from platoon_plugins.keras.backends import Backend
from platoon_plugins.keras.optimizers import all_optimizers, average_of_model, wrap_again
from platoon_plugins.keras.statistics import decay_for


def require_distributable(model: Any, backend: Backend) -> Any:
    """Check a model before several workers train it; return its `ModelAverages`, if any."""
    average = average_of_model(model)
    backend.require_trainable(model, average is not None)
    require_weights(model, backend)
    return average


def require_weights(model: Any, backend: Backend) -> None:
    """Raise if a model has no trainable weights, or some of an unsupported dtype."""
    weights = backend.weights(model)
    if not weights:
        raise ConfigurationError(
            "got a model without trainable weights, so there is nothing to train together: if it "
            "is not built yet, put keras.Input(shape) before its layers, or call "
            "model.build(input_shape)"
        )
    for weight in weights:
        if weight.dtype not in FLOATS:
            raise ConfigurationError(
                f"got {weight.name} of dtype {weight.dtype}: workers combine weights of {', '.join(FLOATS)}; with the "
                'dtype policy "mixed_bfloat16" weights stay float32'
            )


def require_new(steps: int) -> None:
    """Raise if a plain optimizer has made steps before the first fit with ``rule="auto"``."""
    # A DistributedOptimizer is loaded from a saved model as a plain one.
    if steps:
        raise ConfigurationError(
            f'got rule="auto" and a plain optimizer that has made {steps} steps, such as that of '
            "a loaded model: a DistributedOptimizer is loaded from a file as a plain one, so it "
            "is unknown whether this training was synchronous. Pass rule=EASGD() to train with a "
            "rule, or call model.compile(DistributedOptimizer(model.optimizer), ...) to continue "
            "with averaged gradients"
        )


def require_no_other_average(model: Any, rule: Any, several_hosts: bool) -> None:
    """Raise if an optimizer averages weights and the rule does not share these averages."""
    # Rules that share moments share `use_ema` averages too, but between hosts only if they wait.
    for each in all_optimizers(model):
        averages = getattr(each, "use_ema", False)
        if averages and several_hosts and not (shares_moments(rule) and waits(rule)):
            raise ConfigurationError(
                f"got an optimizer with use_ema=True and {rule!r} in a job on several hosts, so "
                "each worker or host would have its own average: compile without use_ema (the "
                "default rule averages its center), or with DistributedOptimizer(optimizer), or "
                "pass rule=LocalSGD(moments=True)"
            )
        if averages and not shares_moments(rule):
            raise ConfigurationError(
                "got an optimizer with use_ema=True and a rule: fit would leave either the "
                "average of one worker's weights or that of all workers in the model. Pass "
                "rule=EASGD(moments=True), which shares the average too, or compile without "
                "use_ema, or with DistributedOptimizer(optimizer)"
            )
        # Ftrl computes the weights from `linear` and `accum`: a step with gradient 0 undoes a change.
        if any(cls.__name__.startswith(("ScheduleFree", "Ftrl")) for cls in type(each).__mro__):
            raise ConfigurationError(
                f"got the optimizer {type(each).__name__} and a rule: at each step it computes "
                "the weights from its own sequences, so the values of the center would be lost; "
                "compile with another optimizer, or with DistributedOptimizer(optimizer)"
            )


def require_stateless(model: Any) -> None:
    """Raise if a layer carries state between batches; call it before dividing rows."""
    for layer in layers_within(model):
        if getattr(layer, "stateful", False) and not hasattr(layer, "layers"):
            raise ConfigurationError(
                f"got the layer {layer.name!r} with stateful=True: each row of a batch continues "
                "that row of the previous batch, and the workers divide the batches, so "
                "sequences would be interrupted. Use stateful=False, train with one worker, or "
                "divide whole sequences in the script and pass them with "
                "callbacks=distribute([...]) to fit, which uses data undivided"
            )


def layers_within(model: Any) -> Iterator[Any]:
    if hasattr(model, "_flatten_layers"):  # Keras 3
        yield from model._flatten_layers()
        return
    yield model
    inner = [getattr(model, name, None) for name in ("layer", "forward_layer", "backward_layer", "cell")]
    for layer in [*getattr(model, "layers", ()), *inner]:
        if isinstance(layer, keras.layers.Layer):
            yield from layers_within(layer)


def broadcast_variables(model: Any, *, worker: Worker | None = None) -> None:
    """Copy the weights, statistics and optimizer state of rank 0 to all workers.

    Call it before a loop over ``train_on_batch``; a ``fit`` with `distribute` does the same. It is
    a collective call, and does nothing for a single worker.

    Parameters
    ----------
    model : keras.Model
        A built model; on Keras 2 it must be compiled too. If a model of Keras 3 is not compiled,
        only the optimizers in its attributes are included.
    worker : Worker, optional
        The default is ``connect()``.

    Raises
    ------
    ConfigurationError
        If the model has no weights yet, or is a model of Keras 2 that is not compiled.
    LayoutMismatchError
        On every worker, before anything is changed, if the models differ between workers.
    """
    worker = connect() if worker is None else worker
    backend = backends.current()
    wrap_again(model, worker)
    # Models of Keras 2 lack this attribute: their back end checks it.
    compiled = getattr(model, "compiled", True)
    if compiled:
        average = require_distributable(model, backend)
    else:
        average = average_of_model(model)
        require_weights(model, backend)
    if worker.global_size == 1:
        return
    copy_first_values(first_values(model, backend), worker, "broadcast_variables")
    # A loop has no epochs, and as many steps as one process.
    decay_for(model, 1)
    values_were_set(model)
    backend.vary_noise(model, worker.global_rank)
    if average is not None:
        backend.watch_losses(model, average)
        backend.place_gradients(model, average, worker)
        average.attach("any", [weight.get_value() for weight in backend.weights(model)])


def first_values(model: Any, backend: Backend) -> list[Any]:
    """Return the variables to copy at the start of a fit, and the epoch of a resumed training."""
    return [*_all_state_of(model, backend), _FirstEpoch(model, backend)]


def values_were_set(model: Any) -> bool:
    """Update Normalization layers after changes of variables; return if functions are remade."""
    parts = model._flatten_layers() if hasattr(keras, "ops") else ()
    layers = [each for each in parts if getattr(each, "adapt_mean", None) is not None]
    before = [keras.ops.convert_to_numpy(tensor) for each in layers for tensor in (each.mean, each.variance)]
    for layer in layers:
        layer.finalize_state()
    after = [keras.ops.convert_to_numpy(tensor) for each in layers for tensor in (each.mean, each.variance)]
    if all(map(np.array_equal, before, after)):
        return False
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function") is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    return True


def end_alike(model: Any, backend: Backend, worker: Worker) -> None:
    """Copy state that still differs from the first worker at the end; a collective call."""
    variables = [*_all_state_of(model, backend), *backend.metrics(model).variables()]
    make_equal(variables, worker, "keras state at the end")


def state_of(model: Any, backend: Backend, statistics: bool = True) -> list[Any]:
    """Return the variables that workers keep equal; state of layers only with ``statistics``."""
    of_layers = [v for v in backend.statistics(model) if getattr(v, "rule", "") != "own"] if statistics else []
    return [*backend.weights(model), *of_layers, *backend.optimizer_state(model)]


def _all_state_of(model: Any, backend: Backend) -> list[Any]:
    return [*backend.weights(model), *backend.statistics(model), *backend.optimizer_state(model)]


def state_checksum(model: Any, backend: Backend) -> int:
    return checksum(np.array(checksums(state_of(model, backend))))


class _FirstEpoch:
    """The epoch at which a callback makes training resume, with the methods of a variable."""

    name = "first epoch"

    def __init__(self, model: Any, backend: Backend) -> None:
        self._model, self._backend = model, backend

    def get_value(self, borrow: bool = False) -> Any:
        return np.array([self._backend.initial_epoch(self._model)])

    def set_value(self, value: Any) -> None:
        epoch = int(value[0])
        if epoch != self._backend.initial_epoch(self._model):
            self._backend.resume_at(self._model, epoch)
