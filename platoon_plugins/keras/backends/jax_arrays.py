"""Arrays of JAX on a CUDA device, for a center on devices, which changes copies of them within a JAX program."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.device_arrays import CudaArray, Queue
from platoon_base.errors import PlatoonError
from platoon_plugins.keras.backends import xla_calls

__all__ = ["JaxArray", "on_cuda"]

_POLL_INTERVAL_S = 1.0  # between checks, during the wait for a program's call, whether the program has failed


class JaxArray(CudaArray):
    """A changeable array on a device. As a jax.Array is immutable, each change replaces ``value``.

    Parameters
    ----------
    value : jax.Array
        An array on one device.

    Attributes
    ----------
    value : jax.Array
    """

    def __init__(self, value: Any) -> None:
        (device,) = value.devices()
        super().__init__(value.shape, value.dtype, device.local_hardware_id)
        self.value = value

    @staticmethod
    def change(arrays: Sequence[JaxArray], queue: Queue) -> None:
        """Queue work on copies of the values, by a program in the order of JAX's other programs."""
        try:
            values = _program.run([array.value for array in arrays], queue)
        except BaseException:
            _begin_anew()
            raise
        for array, value in zip(arrays, values):
            array.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.value, dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        """Set all values at once."""
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: JAX's arrays do not change; set all values, by [...]")
        given = values.value if isinstance(values, JaxArray) else np.broadcast_to(values, self.shape)
        self.value = jnp.array(given, self.dtype, copy=True, device=next(iter(self.value.devices())))

    def __getitem__(self, key: Any) -> JaxArray:
        return JaxArray(self.value[key])

    def reshape(self, shape: tuple[int, ...]) -> JaxArray:
        return JaxArray(self.value.reshape(shape))

    def copy(self) -> JaxArray:
        """Return another JaxArray with the same immutable value."""
        return JaxArray(self.value)


def on_cuda(value: Any) -> JaxArray | None:
    """Return a JaxArray of a jax.Array; None if that is not on one CUDA device, or NumPy lacks its dtype."""
    devices = value.devices()
    there = len(devices) == 1 and next(iter(devices)).platform == "gpu"
    return JaxArray(value) if there and value.dtype.kind == "f" else None


class _Program:
    """A JAX program that copies arrays and then calls a handler; compiled once for arrays of each shape.

    The host does not wait for the device, but only for the call, which is made when the program is started.
    """

    def __init__(self) -> None:
        self._compiled = jax.jit(lambda values: xla_calls.call_on_stream(self, values))
        self._turn = threading.Lock()
        self._called = threading.Event()
        self._work: Queue | None = None
        self._failure: BaseException | None = None

    def run(self, values: list[Any], work: Queue) -> list[Any]:
        """Return copies of values that ``work`` changes; it gets their addresses and the stream of the program."""
        with self._turn:
            self._called.clear()
            self._work, self._failure = work, None
            try:
                found: list[Any] = self._compiled(values)
                while not self._called.wait(_POLL_INTERVAL_S):
                    if found[0].is_ready():  # without a call: the program has failed, or an earlier one
                        jax.block_until_ready(found)
                        raise PlatoonError("JAX has ended a synchronization without making it")
            finally:
                self._work = None
            if self._failure is not None:
                raise self._failure
            return found

    def queue(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
        """Queue the current work; an exception in it is stored for the caller of `run`."""
        try:
            if self._work is not None:
                self._work([block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


_program = _Program()


def _begin_anew() -> None:
    """Replace the program, as the failed one may still make its call."""
    global _program
    _program = _Program()
