"""Arrays of JAX in the memory of a CUDA device, as a center there takes them: it changes copies, within a program."""

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

_POLL_INTERVAL_S = 1.0  # how often who waits for a program's call looks whether the program has failed


class JaxArray(CudaArray):
    """A jax.Array on a device. As those do not change, this holds another one after each change.

    Parameters
    ----------
    value : jax.Array
        On one device.

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
        """Queue work on copies, by a program between those that JAX has been given before and after."""
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
        """Take values over, all at once."""
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: JAX's arrays do not change; set all values, by [...]")
        given = values.value if isinstance(values, JaxArray) else np.broadcast_to(values, self.shape)
        self.value = jnp.array(given, self.dtype, copy=True, device=next(iter(self.value.devices())))

    def __getitem__(self, key: Any) -> JaxArray:
        return JaxArray(self.value[key])

    def reshape(self, shape: tuple[int, ...]) -> JaxArray:
        return JaxArray(self.value.reshape(shape))

    def copy(self) -> JaxArray:
        """Return another holder of the same value, which does not change."""
        return JaxArray(self.value)


def on_cuda(value: Any) -> JaxArray | None:
    """Return a jax.Array as an array of a CUDA device; None if it is elsewhere, or NumPy lacks its dtype."""
    devices = value.devices()
    there = len(devices) == 1 and next(iter(devices)).platform == "gpu"
    return JaxArray(value) if there and value.dtype.kind == "f" else None


class _Program:
    """Copies arrays, and calls back between the copies and all that uses them; compiled once for arrays of each shape.

    The host does not wait for the device: only for the call, which is made when the program is started.
    """

    def __init__(self) -> None:
        self._compiled = jax.jit(lambda values: xla_calls.call_on_stream(self, values))
        self._turn = threading.Lock()
        self._called = threading.Event()
        self._work: Queue | None = None
        self._failure: BaseException | None = None

    def run(self, values: list[Any], work: Queue) -> list[Any]:
        """Return copies that ``work`` changes, which gets their addresses and the stream of the program."""
        with self._turn:
            self._called.clear()
            self._work, self._failure = work, None
            try:
                found: list[Any] = self._compiled(values)
                while not self._called.wait(_POLL_INTERVAL_S):
                    if found[0].is_ready():  # it has failed, perhaps as one before it did
                        jax.block_until_ready(found)
                        raise PlatoonError("JAX has ended a synchronization without making it")
            finally:
                self._work = None
            if self._failure is not None:
                raise self._failure
            return found

    def queue(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
        """Queue the work that waits for the program; what it raises is kept for the caller."""
        try:
            if self._work is not None:
                self._work([block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


_program = _Program()


def _begin_anew() -> None:
    """Take another program, as this one's call may still be made."""
    global _program
    _program = _Program()
