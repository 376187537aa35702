"""Optimizer state that a rule shares: averages of the weights (``use_ema``) and step counts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.optimizers import optimizers_of, with_inner

__all__ = ["begin_averages", "continue_steps", "end_averages", "keeps_averages", "require_built", "unbuilt"]


def require_built(model: Any) -> None:
    """Raise if an optimizer has no moments yet, which could not be shared."""
    for optimizer in unbuilt(model):
        raise ConfigurationError(
            f"got a model whose optimizer {type(optimizer).__name__} is not built, and a rule that is to share its "
            "moments: call optimizer.build(variables), with those that it trains, before fit"
        )


def unbuilt(model: Any) -> list[Any]:
    return [optimizer for optimizer in optimizers_of(model) if not getattr(optimizer, "built", True)]


def continue_steps(model: Any, steps: int) -> None:
    """Let optimizers continue the step count of an earlier run, whose moments they have."""
    for optimizer in [inner for outer in optimizers_of(model) for inner in with_inner(outer)]:
        count = getattr(optimizer, "iterations", None)
        if hasattr(count, "assign") and not int(keras.ops.convert_to_numpy(count)):
            count.assign(steps)


def keeps_averages(model: Any) -> bool:
    """Return whether the optimizer averages weights; a fit leaves the averages in the model."""
    return bool(_averaging([getattr(model, "optimizer", None)]))


def begin_averages(model: Any) -> None:
    """Start averages from the weights before the first step: a rule would spread Keras's zeros."""
    for optimizer in _averaging(optimizers_of(model)):
        if not int(keras.ops.convert_to_numpy(optimizer.iterations)):
            _copy(optimizer._trainable_variables, optimizer._model_variables_moving_average)


def end_averages(model: Any) -> None:
    """Put the averages into the model, as Keras does at the end of a fit."""
    for optimizer in _averaging([getattr(model, "optimizer", None)]):
        _copy(optimizer._model_variables_moving_average, optimizer._trainable_variables)


def _averaging(optimizers: list[Any]) -> list[Any]:
    each = (inner for outer in optimizers for inner in with_inner(outer))
    return [inner for inner in each if getattr(inner, "use_ema", False) and inner.built]


def _copy(sources: Any, targets: Any) -> None:
    """Copy through NumPy: on JAX, ``assign`` of a variable would share memory."""
    for source, target in zip(sources, targets):
        target.assign(np.array(keras.ops.convert_to_numpy(source)))
