"""Tensors of torch as parameters: on the CPU their memory itself, on a CUDA device for a center there or on the host.

Nothing imports this before there are tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.device_arrays import CudaArray, Order, Queue
from platoon_base.errors import ConfigurationError

__all__ = ["HostCopy", "TensorMemory", "TensorParameter", "TorchArray", "host_copy", "on_cuda"]

Array = np.ndarray[Any, Any]
Tensor = Any


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
        strides = None if tensor.is_contiguous() else tensor.stride()
        super().__init__(shape, dtype, tensor.device.index, strides)
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

    def copy_in(self, order: Order) -> TorchArray:
        """Return a copy whose memory has another order."""
        back = sorted(range(len(order)), key=order.__getitem__)
        return TorchArray(self._tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back))

    def copy_to(self, tensor: Any) -> None:
        """Copy the values to a tensor."""
        tensor.detach().copy_(self._tensor)


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


class TensorMemory:
    """The methods of `platoon_base.parameters.Parameter` for a value that is a tensor.

    Values are changed outside of autograd, in the memory of the tensor.
    """

    _array: TorchArray | None = None
    _copy: HostCopy | None = None
    _lent: Array | None = None  # the memory itself, as `borrow` has returned it
    _order: Order | None = None  # in which a center on devices has the values

    def tensor(self) -> Tensor:
        """Return the tensor that has the value now."""
        raise NotImplementedError

    def memory(self) -> Array | None:
        """Return the memory of the value, if it is on the CPU."""
        tensor = self.tensor()
        found: Array | None = tensor.detach().numpy() if tensor.device.type == "cpu" else None
        return found

    def prefetch(self) -> None:
        """Start a copy of the value from a CUDA device; `borrow` waits for it."""
        tensor = self.tensor()
        if tensor.device.type == "cpu":
            self._copy = None
            return
        if self._copy is None or not self._copy.fits(tensor):
            self._copy = host_copy(tensor)
        if self._copy is not None:
            self._copy.start(tensor)

    def borrow(self) -> Array:
        """Return the memory of the value itself on the CPU, or of a page-locked copy from a CUDA device."""
        memory = self.memory()
        self._lent = memory if memory is not None and memory.flags.c_contiguous else None
        if memory is not None:
            return np.array(memory, order="C") if self._lent is None else memory
        if self._copy is None or not self._copy.started:
            self.prefetch()
        return np.array(self.tensor().detach().cpu().numpy(), order="C") if self._copy is None else self._copy.wait()

    def on_device(self) -> TorchArray | None:
        """Return the memory of the value itself, if it is on a CUDA device; a copy if that has another order."""
        tensor = self.tensor()
        if self._array is None or not self._array.is_on(tensor):
            self._array = on_cuda(tensor)
        array = self._array
        if array is None or array.order == self._order or (array.order is not None and self._order is None):
            return array
        return array.copy_in(tuple(range(tensor.ndim)) if self._order is None else self._order)

    def keep_order(self, order: Order) -> bool:
        """Let `on_device` return arrays of this order; return whether each is then a copy."""
        self._order = order
        return self.on_device() is not self._array

    def give_back(self, array: Any) -> None:
        """Set the value to the array that `borrow` or `on_device` returned, unless they share their memory."""
        if array is self._array or array is self._lent:
            return
        if isinstance(array, TorchArray):
            array.copy_to(self.tensor())
            return
        if self._copy is not None and array is self._copy.array:
            self._copy.write(self.tensor())
            return
        memory = self.memory()
        if memory is None:
            self.tensor().detach().copy_(torch.from_numpy(np.asarray(array)))
        elif memory.ctypes.data != array.ctypes.data:
            memory[...] = array


class TensorParameter(TensorMemory):
    """A tensor as a parameter.

    Parameters
    ----------
    tensor : torch.Tensor
        Of a dtype that NumPy has.
    name : str

    Raises
    ------
    ConfigurationError
        If the dtype is none of NumPy's, or the tensor is not dense.
    """

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.name = name
        self._tensor = tensor
        if tensor.layout is not torch.strided:
            raise ConfigurationError(f"{name} is a tensor of layout {tensor.layout}: parameters are dense tensors")
        self._checked: torch.dtype | None = None
        self.tensor()

    @property
    def frozen(self) -> bool:
        """Whether it is a module's parameter that is not trained; tensors without autograd may be trained by hand."""
        return isinstance(self._tensor, torch.nn.Parameter) and not self._tensor.requires_grad

    def tensor(self) -> Tensor:
        """Return the tensor; raise `ConfigurationError` if it has become one of a dtype that NumPy has not."""
        tensor = self._tensor
        if tensor.dtype is not self._checked:
            if not hasattr(np, str(tensor.dtype).rpartition(".")[2]):
                raise ConfigurationError(
                    f"{self.name} is a tensor of {tensor.dtype}, which NumPy has not: keep the parameters in "
                    "torch.float32, and compute in the other type by torch.autocast"
                )
            self._checked = tensor.dtype
        return tensor
