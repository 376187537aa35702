"""Models of Keras on torch whose averages of gradients start during the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from platoon_base.torch_loops import EarlyAverages

__all__ = ["early_weights", "watched_function"]

Tensor = Any

_HOOK = "register_post_accumulate_grad_hook"  # torch 2.1


def early_weights(model: Any) -> list[Tensor]:
    """Return the weights whose averages may start in the backward pass; none if any may not."""
    # Keras's own train_step makes one backward pass for one call of the optimizer.
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        return []
    weights = [weight.value for weight in model.trainable_weights]
    # Weights of torch modules may have no gradient, though Keras lists them as trainable.
    can = (weight.is_leaf and weight.requires_grad and hasattr(weight, _HOOK) for weight in weights)
    return weights if all(can) else []


def watched_function(model: Any, early: EarlyAverages) -> Callable[..., Any]:
    """Return a model's train_function with early averages, until trainable layers change."""
    function = getattr(model.train_function, "plain", model.train_function)
    tensors = [weight.value for weight in model.weights]
    trained = [tensor.requires_grad for tensor in tensors]

    @functools.wraps(function)
    def train_function(*args: Any) -> Any:
        if [tensor.requires_grad for tensor in tensors] != trained:
            early.close()
        with early.step():
            return function(*args)

    train_function.plain = function  # type: ignore[attr-defined]
    return train_function
