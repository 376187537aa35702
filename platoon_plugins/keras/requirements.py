"""Requirements on a model that several workers train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from platoon_base.dtypes import FLOATS
from platoon_base.errors import ConfigurationError
from platoon_base.rules import shares_moments, waits
from platoon_plugins.keras.backends.base import Backend
from platoon_plugins.keras.optimizers import all_optimizers, average_of_model

__all__ = ["require_distributable", "require_new", "require_no_other_average", "require_stateless", "require_weights"]


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
            "got a model without trainable weights: there is nothing to train together; if it is not built yet, put "
            "keras.Input(shape) in front of its layers, or call model.build(input_shape)"
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
            f'got rule="auto" and a plain optimizer that has made {steps} steps, such as that of a loaded model: a '
            "DistributedOptimizer comes back from a file as a plain one, so whether this training was synchronous is "
            "not known; pass rule=EASGD() to train with a rule, or call "
            "model.compile(DistributedOptimizer(model.optimizer), ...) to go on with averaged gradients"
        )


def require_no_other_average(model: Any, rule: Any, several_hosts: bool) -> None:
    """Raise if an optimizer averages weights and the rule does not share these averages."""
    # Rules that share moments share `use_ema` averages too, but between hosts only if they wait.
    for each in all_optimizers(model):
        averages = getattr(each, "use_ema", False)
        if averages and several_hosts and not (shares_moments(rule) and waits(rule)):
            raise ConfigurationError(
                f"got an optimizer with use_ema=True and {rule!r} in a job on several hosts: each worker or host would "
                "have an average of its own; compile without use_ema, as the default rule averages its center, or with "
                "DistributedOptimizer(optimizer), or pass rule=LocalSGD(moments=True)"
            )
        if averages and not shares_moments(rule):
            raise ConfigurationError(
                "got an optimizer with use_ema=True and a rule: fit would leave the average of one worker's weights in "
                "the model, or that of all, but not both; pass rule=EASGD(moments=True), which shares the average too, "
                "or compile without use_ema, or with DistributedOptimizer(optimizer)"
            )
        if any(cls.__name__.startswith("ScheduleFree") for cls in type(each).__mro__):
            raise ConfigurationError(
                f"got the optimizer {type(each).__name__} and a rule: it computes the weights anew from sequences of "
                "its own at each step, so what the center gives them would be lost; compile with another optimizer, "
                "or with DistributedOptimizer(optimizer)"
            )


def require_stateless(model: Any) -> None:
    """Raise if a layer carries state between batches; call it before dividing rows."""
    for layer in layers_within(model):
        if getattr(layer, "stateful", False) and not hasattr(layer, "layers"):
            raise ConfigurationError(
                f"got the layer {layer.name!r} with stateful=True: each row of a batch continues that row of the batch "
                "before it, and the workers divide the batches, so sequences would be broken up. Use stateful=False, "
                "train without other workers, or divide whole sequences in the script and pass them with "
                "callbacks=distribute([...]) to fit, which takes data as they are"
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
