"""Tensors of torch on a CUDA device, for a center on devices or on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.device_arrays import CudaArray, Queue

__all__ = ["HostCopy", "TorchArray", "host_copy", "on_cuda"]


class TorchArray(CudaArray):
    """A tensor on a device. torch queues copies on its current stream, on which the center launches its kernels too.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor on a CUDA device, of a dtype that NumPy has.
    """

    def __init__(self, tensor: Any) -> None:
        dtype = str(tensor.dtype)[len("torch.") :]
        shape = tuple(tensor.shape)
        super().__init__(shape, dtype, tensor.device.index, tensor.is_contiguous())
        self._tensor = tensor

    def is_on(self, tensor: Any) -> bool:
        """Return whether this array has the memory, shape and dtype of a tensor."""
        mine = self._tensor
        return bool(
            mine.data_ptr() == tensor.data_ptr()
            and (mine.dtype, mine.shape, mine.device) == (tensor.dtype, tensor.shape, tensor.device)
            and mine.stride() == tensor.stride()
        )

    @staticmethod
    def change(arrays: Sequence[TorchArray], queue: Queue) -> None:
        """Queue work on the memory of the tensors."""
        tensors = [array._tensor for array in arrays]
        stream = torch.cuda.current_stream(tensors[0].device).cuda_stream
        queue([tensor.data_ptr() for tensor in tensors], int(stream))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._tensor.cpu().numpy(), dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        given = values._tensor if isinstance(values, TorchArray) else torch.as_tensor(np.asarray(values))
        self._tensor[key] = given.to(self._tensor.device)

    def __getitem__(self, key: Any) -> TorchArray:
        return TorchArray(self._tensor[key])

    def reshape(self, shape: tuple[int, ...]) -> TorchArray:
        """Return the values in another shape; a view, if the array is contiguous."""
        return TorchArray(self._tensor.reshape(shape))

    def copy(self) -> TorchArray:
        return TorchArray(self._tensor.clone())


def on_cuda(tensor: Any) -> TorchArray | None:
    """Return a TorchArray of a tensor; None if that is not on a CUDA device, or NumPy lacks its dtype."""
    if tensor.device.type != "cuda" or torch.version.cuda is None or tensor.dtype not in _DTYPES:
        return None
    return TorchArray(tensor.detach())


_DTYPES = {torch.float16, torch.float32, torch.float64}


class HostCopy:
    """A copy of a tensor in page-locked memory of the host, reused as new memory would take longer than the copy.

    Copies are queued on torch's current stream, after the work that computes the value and before its next use.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor on a CUDA device, of a dtype that NumPy has.

    Attributes
    ----------
    array : ndarray
        The memory of the copy.
    started : bool
        Whether a copy was started for which `wait` has not waited.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._device = tensor.device
        self.array: np.ndarray[Any, Any] = self._tensor.numpy()
        self.started = False

    def fits(self, tensor: Any) -> bool:
        """Return whether a tensor has this copy's device, shape and dtype."""
        mine = self._tensor
        return bool((tensor.device, tensor.shape, tensor.dtype) == (self._device, mine.shape, mine.dtype))

    def start(self, tensor: Any) -> None:
        """Queue the copy from the device."""
        self._tensor.copy_(tensor.detach(), non_blocking=True)
        self.started = True

    def wait(self) -> np.ndarray[Any, Any]:
        """Wait for the copy from the device; return its memory."""
        torch.cuda.current_stream(self._device).synchronize()
        self.started = False
        return self.array

    def write(self, tensor: Any) -> None:
        """Queue the copy to the device. The memory must not change before `wait` for a later copy has returned."""
        tensor.detach().copy_(self._tensor, non_blocking=True)


def host_copy(tensor: Any) -> HostCopy | None:
    """Return a HostCopy for a tensor; None if that is not on a CUDA device, or NumPy lacks its dtype."""
    return None if on_cuda(tensor) is None else HostCopy(tensor)
