"""Keras 3 on JAX: within an epoch the weights are in the trainer's state, and gradients leave the compiled step by a
callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["backend"]


class _JaxVariable(KerasVariable):
    def on_host(self) -> bool:
        """See `KerasVariable.on_host`."""
        return all(device.platform == "cpu" for device in self.variable.value.devices())

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """See `Variable.set_value`; a copy, as JAX takes aligned memory of NumPy over."""
        self.variable.assign(jnp.array(value, self.dtype, copy=True))

    def view(self) -> Any:
        """See `KerasVariable.view`."""
        return np.asarray(self.variable.value)


class _Jax(Keras3):
    variable = _JaxVariable

    def attach(self, model: Any) -> None:
        """See `Backend.attach`: the trainer takes the variables' values over before its next step."""
        model.jax_state_sync()

    def averaged_in_graph(self, gradients: Sequence[Any], average: GradientAverage, weight: Any) -> Sequence[Any]:
        """See `Keras3.averaged_in_graph`: ordered, as all workers must make the calls in one order."""
        shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in gradients]
        averages: Sequence[Any] = io_callback(average, shapes, list(gradients), weight, ordered=True)
        return averages

    def tell(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        """See `Keras3.tell`."""
        scalars = map(jax.lax.stop_gradient, map(jnp.asarray, values))
        io_callback(lambda *numbers: call(*map(float, numbers)), None, *scalars, ordered=True)

    def settle(self) -> None:
        """See `Backend.settle`."""
        jax.effects_barrier()


def backend() -> _Jax:
    """Return the back end."""
    return _Jax()
