"""The constraints of weights, such as NonNeg, which a rule does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

__all__ = ["constraints_of"]


def constraints_of(weights: Sequence[Any]) -> Callable[[], object] | None:
    """Return a function that applies the constraints of trainable weights; None if no weight has one.

    Parameters
    ----------
    weights : sequence of Variable
        What `Backend.weights` returns.
    """
    found = [(weight, getattr(getattr(weight, "variable", weight), "constraint", None)) for weight in weights]
    constrained = [(weight, constraint) for weight, constraint in found if constraint is not None]
    if not constrained:
        return None
    if not hasattr(keras, "ops"):  # Keras 2, whose constraints take and return symbolic values
        compiled = keras.backend.function([], [], updates=[(weight, each(weight)) for weight, each in constrained])
        return lambda: compiled([])

    # Keras passes variables; those of the model itself may be empty, as they are within an epoch on JAX.
    passed = [keras.Variable(weight.get_value(), trainable=False) for weight, _ in constrained]

    def apply() -> None:
        for variable, (weight, constraint) in zip(passed, constrained):
            variable.assign(weight.get_value())
            weight.set_value(np.array(keras.ops.convert_to_numpy(constraint(variable))))

    return apply
