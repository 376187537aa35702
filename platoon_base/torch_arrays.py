"""Tensors of torch as parameters, on the CPU or on a CUDA device; imported only with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.device_arrays import CudaArray, Order, Queue
from platoon_base.dtypes import FLOATS, Array
from platoon_base.errors import ConfigurationError

Tensor = Any


class TorchArray(CudaArray):
    """A tensor on a CUDA device. Copies and the center's kernels use torch's current stream."""

    def __init__(self, tensor: Any) -> None:
        dtype = str(tensor.dtype)[len("torch.") :]
        shape = tuple(tensor.shape)
        strides = None if tensor.is_contiguous() else tensor.stride()
        super().__init__(shape, dtype, tensor.device.index, strides)
        self._tensor = tensor

    def is_on(self, tensor: Any) -> bool:
        mine = self._tensor
        return bool(
            mine.data_ptr() == tensor.data_ptr()
            and (mine.dtype, mine.shape, mine.device) == (tensor.dtype, tensor.shape, tensor.device)
            and mine.stride() == tensor.stride()
        )

    @staticmethod
    def change(arrays: Sequence[TorchArray], queue: Queue) -> None:
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
    """Return a TorchArray of a tensor; None unless on a CUDA device, with a dtype of NumPy."""
    if tensor.device.type != "cuda" or torch.version.cuda is None or tensor.dtype not in _DTYPES:
        return None
    return TorchArray(tensor.detach())


_DTYPES = {getattr(torch, name) for name in FLOATS}


class HostCopy:
    """A copy of a tensor in memory of the host, reused as allocating is slower than copying.

    It is page-locked if the tensor is on a CUDA device; copies are then queued on torch's current stream.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._device = tensor.device
        self._copied = torch.cuda.Event() if tensor.is_cuda else None
        self.array: np.ndarray[Any, Any] = self._tensor.numpy()
        # Whether a copy was started since the last `wait`.
        self.started = False

    def fits(self, tensor: Any) -> bool:
        mine = self._tensor
        return bool((tensor.device, tensor.shape, tensor.dtype) == (self._device, mine.shape, mine.dtype))

    def start(self, tensor: Any) -> None:
        self._copy(self._tensor, tensor.detach())
        self.started = True

    def wait(self) -> np.ndarray[Any, Any]:
        """Wait for the latest copy."""
        if self._copied is not None:
            self._copied.synchronize()
        self.started = False
        return self.array

    def write(self, tensor: Any) -> None:
        """Queue the copy to the device; the memory must stay until a later `wait` returns."""
        self._copy(tensor.detach(), self._tensor)

    def _copy(self, target: Tensor, source: Tensor) -> None:
        if self._copied is None:
            target.copy_(source)
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._copied)  # An earlier copy may be queued on another stream.
        target.copy_(source, non_blocking=True)
        self._copied.record(stream)


def host_copy(tensor: Any) -> HostCopy | None:
    return None if on_cuda(tensor) is None else HostCopy(tensor)


class TensorMemory:
    """The methods of `Parameter` for a tensor, which is changed in place, outside of autograd."""

    _array: TorchArray | None = None
    _copy: HostCopy | None = None
    # The memory itself, if `borrow` has returned it.
    _lent: Array | None = None
    _ordered: Any = None
    # The memory order of the center on devices.
    _order: Order | None = None

    def tensor(self) -> Tensor:
        """Return the tensor that has the value now."""
        raise NotImplementedError

    def memory(self) -> Array | None:
        tensor = self.tensor()
        found: Array | None = tensor.detach().numpy() if tensor.device.type == "cpu" else None
        return found

    def prefetch(self) -> None:
        tensor = self.tensor()
        if tensor.device.type == "cpu":
            self._copy = None
            return
        if self._copy is None or not self._copy.fits(tensor):
            self._copy = host_copy(tensor)
        if self._copy is not None:
            self._copy.start(tensor)

    def borrow(self) -> Array:
        """Return the memory itself on the CPU, or a page-locked copy from a CUDA device."""
        memory = self.memory()
        self._lent = memory if memory is not None and memory.flags.c_contiguous else None
        if memory is not None:
            return self._in_c_order() if self._lent is None else memory
        if self._copy is None or not self._copy.started:
            self.prefetch()
        return np.array(self.tensor().detach().cpu().numpy(), order="C") if self._copy is None else self._copy.wait()

    def on_device(self) -> TorchArray | None:
        """Return the memory itself, if it is on a CUDA device, or a copy in the center's memory order."""
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
        if array is self._array or array is self._lent:
            return
        if isinstance(array, TorchArray):
            array.copy_to(self.tensor())
            return
        if self._copy is not None and array is self._copy.array:
            self._copy.write(self.tensor())
            return
        memory = self.memory()
        if memory is None or memory.ctypes.data != array.ctypes.data:
            self.tensor().detach().copy_(torch.from_numpy(np.asarray(array)))

    def _in_c_order(self) -> Array:
        """Return a copy in memory that is used again: torch transposes faster than NumPy."""
        tensor = self.tensor().detach()
        if self._ordered is None or (self._ordered.shape, self._ordered.dtype) != (tensor.shape, tensor.dtype):
            self._ordered = torch.empty(tensor.shape, dtype=tensor.dtype)
        found: Array = self._ordered.copy_(tensor).numpy()
        return found


class TensorParameter(TensorMemory):
    """A dense tensor as a parameter, of a dtype that NumPy has."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.name = name
        self._tensor = tensor
        if tensor.layout is not torch.strided:
            raise ConfigurationError(f"{name} is a tensor of layout {tensor.layout}: parameters must be dense tensors")
        self._checked: torch.dtype | None = None
        self.tensor()

    @property
    def frozen(self) -> bool:
        """Whether it is a module's parameter without requires_grad; others may be trained."""
        return isinstance(self._tensor, torch.nn.Parameter) and not self._tensor.requires_grad

    def tensor(self) -> Tensor:
        """Return the tensor; raise if its dtype has changed to one that NumPy lacks."""
        tensor = self._tensor
        if tensor.dtype is not self._checked:
            if not hasattr(np, str(tensor.dtype).rpartition(".")[2]):
                raise ConfigurationError(
                    f"{self.name} is a tensor of {tensor.dtype}, which NumPy does not have: keep "
                    "the parameters in torch.float32, and compute in the other type with "
                    "torch.autocast"
                )
            self._checked = tensor.dtype
        return tensor
