"""Arrays of JAX in the memory of a CUDA device, as a center there takes them: copies, since JAX's do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.device_arrays import CudaArray

__all__ = ["CopiedTogether", "JaxArray"]


class JaxArray(CudaArray):
    """See `CudaArray`. Its memory is changed behind JAX's back, so nobody else may have the array that it holds.

    JAX does not show its streams: the value is ready when this is made, and a kernel on it is waited for.

    Parameters
    ----------
    value : jax.Array
        On one CUDA device.

    Attributes
    ----------
    value : jax.Array
    """

    stream = None

    def __init__(self, value: Any) -> None:
        self._hold(value)

    def _hold(self, value: Any) -> None:
        self.value = value.block_until_ready()
        (device,) = value.devices()
        super().__init__(value.unsafe_buffer_pointer(), value.shape, value.dtype, device.local_hardware_id)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        """See `CudaArray.__array__`: of a copy, since JAX keeps what it has once brought to the host."""
        return np.asarray(jnp.array(self.value, copy=True), dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        """See `CudaArray.__setitem__`; all values at once."""
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: JAX's arrays do not change; set all values, by [...]")
        given = values.value if isinstance(values, JaxArray) else np.broadcast_to(values, self.shape)
        self._hold(jnp.array(given, self.dtype, copy=True, device=next(iter(self.value.devices()))))

    def __getitem__(self, key: Any) -> JaxArray:
        """See `CudaArray.__getitem__`."""
        return JaxArray(self.value[key])

    def reshape(self, shape: tuple[int, ...]) -> JaxArray:
        """See `CudaArray.reshape`: a copy."""
        return JaxArray(self.value.reshape(shape))

    def copy(self) -> JaxArray:
        """See `CudaArray.copy`."""
        return JaxArray(jnp.array(self.value, copy=True))


class CopiedTogether:
    """Copies of weights on their CUDA device, made by one program: one by one they would take several times as long.

    Parameters
    ----------
    values : sequence of callable
        Each returns a weight's present value, a jax.Array.
    """

    def __init__(self, values: Sequence[Callable[[], Any]]) -> None:
        self._values = values
        self._made: dict[int, tuple[Any, Any]] = {}  # by weight, what was copied and the copy

    def take(self, index: int) -> JaxArray | None:
        """Return a copy that is nobody else's; None if the weight is elsewhere, or NumPy lacks its dtype."""
        value = self._values[index]()
        if not _on_one_cuda_device(value):
            return None
        copied, copy = self._made.pop(index, (None, None))
        if copied is not value:
            values = [each() for each in self._values]
            there = [i for i, each in enumerate(values) if _on_one_cuda_device(each)]
            copies = _copied([values[i] for i in there])
            self._made = {i: (values[i], copy) for i, copy in zip(there, copies)}
            _, copy = self._made.pop(index)
        return JaxArray(copy)


@jax.jit
def _copied(values: list[Any]) -> list[Any]:
    return [jnp.array(value, copy=True) for value in values]


def _on_one_cuda_device(value: Any) -> bool:
    devices = value.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "gpu" and value.dtype.kind == "f"
