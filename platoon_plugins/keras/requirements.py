"""What a model must be like to be trained by several workers."""

from __future__ import annotations

from typing import Any

import keras

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.base import Backend
from platoon_plugins.keras.gradients import GradientAverage
from platoon_plugins.keras.optimizer import average_of

__all__ = ["require_distributable"]

_FLOATS = ("float16", "float32", "float64")


def require_distributable(model: Any, backend: Backend) -> GradientAverage | None:
    """Look at a model before it is trained together with those of other workers.

    Returns
    -------
    GradientAverage or None
        What averages the gradients of its optimizer; None for a plain one.

    Raises
    ------
    ConfigurationError
        If it is not compiled, or cannot be trained so.
    """
    optimizer = getattr(model, "optimizer", None)
    average = average_of(optimizer) if optimizer is not None else None
    backend.require_trainable(model, average is not None)
    _require_one_average(model, average)
    weights = backend.weights(model)
    if not weights:
        raise ConfigurationError("got a model without trainable weights: there is nothing to train together")
    for weight in weights:
        if weight.dtype not in _FLOATS:
            raise ConfigurationError(
                f"got {weight.name} of dtype {weight.dtype}: workers combine weights of {', '.join(_FLOATS)}; with the "
                'dtype policy "mixed_bfloat16" weights stay float32'
            )
    return average


def _require_one_average(model: Any, average: GradientAverage | None) -> None:
    """Raise if gradients would be averaged in another place than model.optimizer."""
    inner = getattr(model.optimizer, "inner_optimizer", None)
    if average is None and inner is not None and average_of(inner) is not None:
        raise ConfigurationError(
            "got a LossScaleOptimizer around a DistributedOptimizer: workers would skip different steps; wrap it "
            "the other way round, DistributedOptimizer(LossScaleOptimizer(optimizer)), in compile()"
        )
    own = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    if any(optimizer is not model.optimizer and average_of(optimizer) is not None for optimizer in own):
        raise ConfigurationError(
            "got a model with a DistributedOptimizer beside model.optimizer, such as that of a GAN's second part: the "
            "gradients of model.optimizer alone can be averaged; give the model plain optimizers, call compile() with "
            "a plain one, and keep its weights together by a rule: distribute(..., sync=EASGD())"
        )
