"""Keras 3 on TensorFlow: the graph calls Python (``tf.numpy_function``) to average gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from platoon_base.dtypes import PLAIN, Array
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.aligned import writable
from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable
from platoon_plugins.keras.backends.tensorflow_gradients import TensorFlowAverage
from platoon_plugins.keras.gradients import GradientAverage


@functools.cache
def _has_devices() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


def _on_host() -> contextlib.AbstractContextManager[Any]:
    """Place new tensors on the host; without GPUs tf.device would only take time."""
    device: contextlib.AbstractContextManager[Any] = tf.device("CPU:0") if _has_devices() else contextlib.nullcontext()
    return device


class _TensorFlowVariable(KerasVariable):
    """A ``tf.Variable``, used by raw operations, which are four times as fast as its methods."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable)
        # Keras's property checks several scopes at each access.
        self._made = variable.value
        # Address of the memory that `borrow` returned last.
        self._lent = 0
        alone = self.on_host() and not isinstance(self._made, tf.distribute.DistributedValues)
        self._has_rows = alone and len(variable.shape) > 0
        self._no_rows: Any = None

    def on_host(self) -> bool:
        return "GPU" not in self._made.device.upper()

    def borrow(self) -> Array:
        """Return the memory itself; TensorFlow copies it first if another tensor shares it."""
        # TensorFlow makes memory exclusive before it updates rows; this update has no rows.
        if not self._has_rows:
            return super().borrow()
        if self._no_rows is None:
            with _on_host():
                self._no_rows = tf.zeros((0, *self._made.shape[1:]), self._made.dtype), tf.zeros(0, tf.int32)
        updates, indices = self._no_rows
        tf.raw_ops.ResourceScatterUpdate(resource=self._made.handle, indices=indices, updates=updates)
        # Otherwise each later read would copy.
        tf.raw_ops.DisableCopyOnRead(resource=self._made.handle)
        array = writable(self.view())
        self._lent = array.ctypes.data
        return array

    def give_back(self, array: Array) -> None:
        """Set the value to an array, unless it is the memory that `borrow` returned last."""
        if not self._has_rows or array.ctypes.data != self._lent:
            super().give_back(array)

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Change the value; Keras's own assign takes three times as long."""
        self._made.assign(np.asarray(value, self.dtype))

    def view(self) -> Any:
        tensor = tf.raw_ops.ReadVariableOp(resource=self._made.handle, dtype=self._made.dtype)
        in_place = self.dtype in PLAIN and self.on_host()
        return np.asarray(memoryview(tensor)) if in_place else tensor.numpy()


class _TensorFlow(Keras3):
    variable = _TensorFlowVariable

    def require_trainable(self, model: Any, averaged: bool) -> None:
        if not model.built:
            raise ConfigurationError(
                "got a model without weights: on TensorFlow fit builds it in its first step, "
                "after the workers have compared their weights; put keras.Input(shape) before "
                "its layers, or call model.build(input_shape)"
            )
        if averaged and model.jit_compile:
            raise ConfigurationError(
                "got a model compiled with jit_compile=True and a DistributedOptimizer: XLA "
                "cannot average gradients inside its program; call model.compile(..., "
                "jit_compile=False)"
            )

    def seed_early(self, seed: int) -> None:
        """Seed the generator that gives data sets the seeds of their shuffles."""
        tf.random.set_seed(seed)

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """Seed TensorFlow by the common seed, as its previous seed cannot be read."""
        super().restore_random_state(state, common_seed)
        tf.random.set_seed(common_seed)

    def average(self, worker: Any) -> GradientAverage:
        return TensorFlowAverage(worker)

    def call_on_host(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        """Call a function of the host in each step, unless XLA compiles it."""
        if not model.jit_compile:
            tf.numpy_function(lambda *numbers: call(*map(float, numbers)), list(values), [])


def backend() -> _TensorFlow:
    return _TensorFlow()
