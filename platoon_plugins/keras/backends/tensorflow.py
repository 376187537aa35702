"""Keras 3 on TensorFlow: gradients leave the graph by a NumPy function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.aligned import AlignedArrays
from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["backend"]

Array = np.ndarray[Any, Any]


class _Memory:
    """The memory of a new tensor for NumPy to write to, which it refuses with tensors as such."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor  # it lives as long as an array is made of this
        interface = np.asarray(memoryview(tensor)).__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


class _TensorFlowVariable(KerasVariable):
    def on_host(self) -> bool:
        """See `KerasVariable.on_host`."""
        return "GPU" not in self.variable.value.device.upper()

    def __init__(self, variable: Any) -> None:
        super().__init__(variable)
        self._fresh: tuple[Any, Array | None] = (None, None)

    def borrow(self) -> Array:
        """See `KerasVariable.borrow`: a copy, in memory of TensorFlow that no one else has seen."""
        if not self.on_host():
            return super().borrow()
        view = self.view()
        with tf.device("CPU:0"):
            tensor = tf.raw_ops.Empty(shape=np.asarray(view.shape, np.int32), dtype=self.variable.value.dtype)
        array: Array = np.asarray(_Memory(tensor))
        np.copyto(array, view)
        self._fresh = tensor, array
        return array

    def give_back(self, array: Array) -> None:
        """Make what `borrow` returned the value: the variable takes that tensor over."""
        tensor, fresh = self._fresh
        if array is not fresh:
            super().give_back(array)
            return
        self._fresh = (None, None)
        self.variable.value.assign(tensor)

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """See `Variable.set_value`; Keras's own assign takes three times as long."""
        self.variable.value.assign(np.asarray(value, self.dtype))

    def view(self) -> Any:
        """See `KerasVariable.view`."""
        tensor = self.variable.value.read_value()
        return np.asarray(memoryview(tensor)) if self.on_host() else tensor.numpy()


class _TensorFlow(Keras3):
    variable = _TensorFlowVariable

    def require_trainable(self, model: Any, averaged: bool) -> None:
        """See `Backend.require_trainable`."""
        super().require_trainable(model, averaged)
        if not model.built:
            raise ConfigurationError(
                "got a model without weights: on TensorFlow fit builds it in its first step, after the workers have "
                "to agree on them; put keras.Input(shape) in front of its layers, or call model.build(input_shape)"
            )
        if averaged and model.jit_compile:
            raise ConfigurationError(
                "got a model compiled with jit_compile=True and a DistributedOptimizer: XLA cannot leave its program "
                "to average gradients; call model.compile(..., jit_compile=False)"
            )

    def seed_early(self, seed: int) -> None:
        """See `Backend.seed_early`: data sets draw the seeds of their shuffles when they are built."""
        tf.random.set_seed(seed)

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """See `Backend.restore_random_state`: nothing tells the seed that TensorFlow had."""
        super().restore_random_state(state, common_seed)
        tf.random.set_seed(common_seed)

    def average(self, worker: Any) -> GradientAverage:
        """See `Backend.average`."""
        return _OutOfGraph(worker)

    def averaged_in_graph(
        self, gradients: Sequence[Any], average: GradientAverage, weight: Any, there: Sequence[bool]
    ) -> Sequence[Any]:
        """See `Keras3.averaged_in_graph`."""
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]  # an embedding's come as IndexedSlices

        def call(weight: Any, *arrays: Any) -> list[Any]:
            return average(arrays, weight, there)

        averages = tf.numpy_function(call, [weight, *dense], [gradient.dtype for gradient in dense])
        for gradient, result in zip(dense, averages):
            result.set_shape(gradient.shape)
        return averages  # type: ignore[no-any-return]

    def tell(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        """See `Keras3.tell`: XLA cannot leave its program."""
        if not model.jit_compile:
            tf.numpy_function(lambda *numbers: call(*map(float, numbers)), list(values), [])


class _OutOfGraph(GradientAverage):
    """See `GradientAverage`; TensorFlow uses the memory of the averages, and lets go of it."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._arrays = AlignedArrays()

    def _empty_like(self, array: Array) -> Array:
        return self._arrays.empty(array.shape, array.dtype)


def backend() -> _TensorFlow:
    """Return the back end."""
    return _TensorFlow()
