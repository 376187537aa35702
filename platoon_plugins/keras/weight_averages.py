"""Averages of the weights that optimizers of Keras 3 keep (``use_ema``), for rules that share them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from platoon_plugins.keras.optimizers import optimizers_of, with_inner

__all__ = ["begin_averages", "end_averages", "keeps_averages"]


def keeps_averages(model: Any) -> bool:
    """Return whether an optimizer averages weights; Keras copies the averages to the model at the end of a fit."""
    return bool(_averaging(model))


def begin_averages(model: Any) -> None:
    """Set the averages to the weights before the first step: a rule would share the zeros of Keras."""
    for optimizer in _averaging(model):
        if not int(keras.ops.convert_to_numpy(optimizer.iterations)):
            _copy(optimizer._trainable_variables, optimizer._model_variables_moving_average)


def end_averages(model: Any) -> None:
    """Copy the averages to the model, as Keras does at the end of a fit."""
    for optimizer in _averaging(model):
        _copy(optimizer._model_variables_moving_average, optimizer._trainable_variables)


def _averaging(model: Any) -> list[Any]:
    each = (inner for outer in optimizers_of(model) for inner in with_inner(outer))
    return [optimizer for optimizer in each if getattr(optimizer, "use_ema", False)]


def _copy(sources: Any, targets: Any) -> None:
    """Copy values through NumPy: on JAX, ``assign`` of a variable would make both share their memory."""
    for source, target in zip(sources, targets):
        target.assign(np.array(keras.ops.convert_to_numpy(source)))
