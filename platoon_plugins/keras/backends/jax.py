"""Keras 3 on JAX: weights are in the trainer's state, and the compiled step averages gradients."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.aligned import writable
from platoon_plugins.keras.backends.jax_gradients import JaxAverage
from platoon_plugins.keras.backends.jax_state import STATE, StepState
from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable
from platoon_plugins.keras.gradients import GradientAverage
from platoon_plugins.keras.optimizers import ModelAverages
from platoon_plugins.keras.sums import BatchLosses

try:
    from platoon_base.jax_arrays import on_cuda
    from platoon_plugins.keras.backends.jax_groups import VariableGroup
except ImportError:  # JAX before 0.5, or no C extension.
    on_cuda = VariableGroup = None  # type: ignore[assignment,misc]

Array = np.ndarray[Any, Any]

# Moves the memory of donated arrays to new arrays and deletes other arrays on it. JAX copies
# memory that NumPy views share.
_taken_over = jax.jit(lambda values: values, donate_argnums=0)


def _sent_as(before: Sequence[Any], values: Sequence[Array]) -> list[Any]:
    """Start the copies of values to the devices of arrays; one call for all is several times as fast."""
    # If an uncommitted array became a committed one, JAX would compile the training step again.
    places = [array.sharding if getattr(array, "committed", True) else None for array in before]
    sent: list[Any] = jax.device_put(list(values), places)
    return sent


class _JaxVariable(KerasVariable):
    """A variable of Keras on JAX; ``donated`` if each training step deletes its array."""

    donated = False
    state: StepState | None = None
    group: Any = None
    # The array that is being copied to a device.
    _sent: Any = None

    @property
    def array(self) -> Any:
        state = self.state
        place = None if state is None else state.place_of(self.variable)
        return self.variable.value if state is None or place is None else state.get_all([place])[0]

    @array.setter
    def array(self, array: Any) -> None:
        state = self.state
        place = None if state is None else state.place_of(self.variable)
        if state is not None and place is not None:
            state.put_all([place], [array])
        elif array is not self.variable.value:
            self.variable.assign(array)

    def on_host(self) -> bool:
        return all(device.platform == "cpu" for device in self.array.devices())

    def set_value(self, value: Any, borrow: bool = False) -> None:
        """Copy the value, as JAX would otherwise share aligned memory with NumPy."""
        if self.on_host():
            self.array = jnp.array(value, self.dtype, copy=True)
        else:  # The copy to the device may read the memory later.
            (self.array,) = _sent_as([self.array], [np.array(value, jnp.dtype(self.dtype))])

    @staticmethod
    def set_values(variables: Sequence[_JaxVariable], values: Sequence[Any]) -> None:
        """Set several values; see `set_value`."""
        if any(variable.on_host() for variable in variables):
            for variable, value in zip(variables, values):
                variable.set_value(value)
            return
        copies = [np.array(value, jnp.dtype(variable.dtype)) for variable, value in zip(variables, values)]
        for variable, array in zip(variables, _sent_as([variable.array for variable in variables], copies)):
            variable.array = array

    def prefetch(self) -> None:
        """Start a copy of the value from a device; `borrow` waits for it."""
        if not self.on_host():
            self.array.copy_to_host_async()

    # `get_value` reads the same copy. A copy of torch is in other memory.
    prefetch_value = prefetch

    def borrow(self) -> Array:
        """Return the value's memory itself if possible: copies take longer than the rule."""
        value = self.array
        if not self.donated or not self.on_host() or len(value.devices()) > 1 or value.dtype.kind != "f":
            return super().borrow()
        self.array = _taken_over(value)
        return writable(self.view())

    def view(self) -> Any:
        return np.asarray(self.array)

    def on_device(self) -> Any:
        return None if on_cuda is None else on_cuda(self.array, self.donated)

    def give_back(self, array: Any) -> None:
        """Set the value to the array that `borrow` or `on_device` returned."""
        value = getattr(array, "value", None)  # Only a JaxArray has a `value`.
        if value is not None:
            self.array = value
        elif not self.on_host():
            (self._sent,) = _sent_as([self.array], [np.asarray(array, self.dtype)])
            self.array = self._sent
        elif not np.may_share_memory(array, self.view()):
            super().give_back(array)

    def flush(self) -> None:
        """Wait for the copy of `give_back` to a device; it reads memory that `borrow` reuses."""
        if self._sent is not None:
            self._sent.block_until_ready()
            self._sent = None


class _Jax(Keras3):
    variable = _JaxVariable

    def __init__(self) -> None:
        # Results of the latest step.
        self._results: Any = None
        self._donated: weakref.WeakSet[_JaxVariable] = weakref.WeakSet()
        # States and groups by model.
        self._states: weakref.WeakKeyDictionary[Any, StepState] = weakref.WeakKeyDictionary()
        self._groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def weights(self, model: Any) -> list[KerasVariable]:
        """Return the trainable weights; their arrays are donated to each compiled step."""
        return self._known(model, super().weights(model))

    def moments(self, model: Any) -> list[KerasVariable]:
        """Return the moments; their arrays are donated like those of the weights."""
        return self._known(model, super().moments(model))

    def _known(self, model: Any, variables: list[Any]) -> list[Any]:
        """Tell variables where the trainer has their values, and whether it donates them."""
        state = self._states.setdefault(model, StepState(model))
        group = self._groups.setdefault(model, VariableGroup(state, _taken_over)) if VariableGroup is not None else None
        for variable in variables:
            variable.state, variable.group = state, group
        if getattr(model, "jit_compile", False) and not getattr(model, "run_eagerly", True):
            for variable in variables:
                variable.donated = True
            self._donated.update(variables)
        return variables

    def steps_are_over(self) -> None:
        """Let `borrow` copy from now on, as callbacks may keep arrays after the last step."""
        for variable in self._donated:
            variable.donated = False
        self._donated.clear()
        with contextlib.ExitStack() as all_of_them:
            for group in self._groups.values():
                all_of_them.callback(group.forget)
            for state in self._states.values():
                all_of_them.callback(state.drop)

    def attach(self, model: Any, only_weights: bool = False) -> None:
        """Make the trainer use the values of the variables in its next step."""
        # With `only_weights` they stay in the trainer's lists if `_JaxVariable.array` can change
        # them.
        state = self._states.get(model)
        if state is not None:
            if only_weights and state.open():
                return
            state.close()
        model.jax_state_sync()

    def average(self, worker: Any) -> GradientAverage:
        return JaxAverage(worker, self.settle)

    def gradient_device(self, model: Any) -> int | None:
        """Return the driver's number of the CUDA device with all trainable weights, or None."""
        devices = {device for weight in model.trainable_weights for device in weight.value.devices()}
        if on_cuda is None or len(devices) != 1:
            return None
        (device,) = devices
        return int(device.local_hardware_id) if device.platform == "gpu" else None

    def place_gradients(self, model: Any, average: ModelAverages, worker: Any) -> None:
        """Average gradients on the devices, if each worker has its own device and NCCL."""
        ordinal = self.gradient_device(model)
        on_devices = worker.gather(ordinal is not None, name="where gradients are averaged")
        were_there = average.on_device
        average.place(worker.advanced.device_all_reduce(ordinal) if all(on_devices) else None)
        # The step may have been traced with gradients in the other place.
        if average.on_device != were_there and model.train_function is not None:
            model.make_train_function(force=True)
            model.train_function = self._guarded(model, average)

    def watch_losses(self, model: Any, average: ModelAverages | None) -> BatchLosses:
        losses = super().watch_losses(model, average)
        step = model.train_function
        if average is not None and step is not None and getattr(step, "average", None) is not average:
            model.train_function = self._guarded(model, average)
        if average is None and model in self._states:
            self._states[model].watch()
        return losses

    def call_on_host(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        scalars = map(jax.lax.stop_gradient, map(jnp.asarray, values))
        io_callback(lambda *numbers: call(*map(float, numbers)), None, *scalars, ordered=True)

    def settle(self) -> None:
        results, self._results = self._results, None
        # A failed program raises its error where its results are used.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.block_until_ready([array for array in jax.tree.leaves(results) if not array.is_deleted()])
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.effects_barrier()

    def _guarded(self, model: Any, average: ModelAverages) -> Callable[..., Any]:
        """Return a model's compiled step with a check that gradients can be averaged."""
        compiled = model.train_function

        @functools.wraps(compiled)
        def step(state: Any, *args: Any) -> Any:
            try:
                average.require_attached()
            except ConfigurationError:
                # During a fit the variables are empty: Keras restores them from here.
                model._jax_state = dict(zip(STATE, state))
                raise
            logs, state = compiled(state, *args)
            # Prefer the logs: the state is donated to the next step.
            self._results = logs or state
            average.program_started()
            return logs, state

        step.average = average  # type: ignore[attr-defined]
        return step


@functools.cache
def backend() -> _Jax:
    """Return the back end, always the same object, as it has the results of the latest step."""
    return _Jax()
