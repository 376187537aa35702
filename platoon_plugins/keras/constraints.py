"""The constraints of weights, such as NonNeg, which rules do not apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

__all__ = ["constraints_of"]


def constraints_of(weights: Sequence[Any]) -> Callable[[], object] | None:
    """Return a function that applies the constraints of `Backend.weights`; None without any."""
    found = [(weight, getattr(getattr(weight, "variable", weight), "constraint", None)) for weight in weights]
    constrained = [(weight, constraint) for weight, constraint in found if constraint is not None]
    if not constrained:
        return None
    if not hasattr(keras, "ops"):  # Constraints of Keras 2 are symbolic.
        compiled = keras.backend.function([], [], updates=[(weight, each(weight)) for weight, each in constrained])
        return lambda: compiled([])

    # Constraints take variables. Those of the model may be empty within an epoch on JAX.
    passed = [keras.Variable(weight.get_value(), trainable=False) for weight, _ in constrained]

    def apply() -> None:
        for variable, (weight, constraint) in zip(passed, constrained):
            variable.assign(weight.get_value())
            weight.set_value(np.array(keras.ops.convert_to_numpy(constraint(variable))))

    return apply
