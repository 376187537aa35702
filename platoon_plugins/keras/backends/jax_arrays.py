"""Arrays of JAX in the memory of a CUDA device, as a center there takes them: copies, since JAX's do not change."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from platoon_base.device_arrays import CudaArray

__all__ = ["JaxArray", "copied_on_cuda"]


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


def copied_on_cuda(value: Any) -> JaxArray | None:
    """Copy an array on its CUDA device; None if it is elsewhere, on several devices, or NumPy lacks its dtype."""
    devices = value.devices()
    if len(devices) > 1 or next(iter(devices)).platform != "gpu" or value.dtype.kind != "f":
        return None
    return JaxArray(jnp.array(value, copy=True))
