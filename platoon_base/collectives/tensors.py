"""Collective calls on torch's tensors: on CUDA devices by NCCL, otherwise through the host.

`torch.distributed` is not used: Keras wraps models by itself if there is a default group, and its
watchdog would end a waiting process before the user gets an error that names the absent rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from platoon_base.collectives.base import Collective, canonical_op, canonical_root, result_shape
from platoon_base.collectives.nccl_group import NcclGroup
from platoon_base.dtypes import NCCL_CODES
from platoon_base.errors import ConfigurationError

Tensor = Any

_STAGED = 64  # Number of shapes with cached page-locked memory.


class _DType(NamedTuple):
    name: str
    divides: bool  # NCCL sums integers; the sum is then divided toward zero, as in all back ends.

    def op(self, name: str) -> str:
        return "sum" if name == "mean" and self.divides else name


_DTYPES = {getattr(torch, name): _DType(name, not getattr(torch, name).is_floating_point) for name in NCCL_CODES}


class NcclTensors(Collective):
    """One rank of a group of CUDA devices; calls are queued on torch's current stream."""

    stays_on_device = True  # See `Advanced.stays_on_device`.

    def __init__(self, group: NcclGroup, device: torch.device) -> None:
        self.rank, self.size, self.compresses = group.rank, group.size, group.compresses
        self._group, self._device = group, device
        self._flag = torch.zeros(1, device=device)

    def all_reduce(
        self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float, feedback: Any = None
    ) -> Tensor:
        name = canonical_op(op)
        array, out, dtype = self._prepared(array, out, tuple(array.shape))
        if array.numel():
            addresses = array.data_ptr(), out.data_ptr()
            kind = dtype.name, dtype.op(name)
            self._group.all_reduce(*addresses, array.numel(), *kind, self._stream(), timeout_s, feedback)
            self._divide(out, name, dtype)
        return out

    def broadcast(self, array: Tensor, root: int = 0, *, timeout_s: float) -> Tensor:
        root = canonical_root(root, self.size)
        source, _, dtype = self._prepared(array, None, ())
        if source.numel():
            self._group.broadcast(source.data_ptr(), source.numel(), dtype.name, root, self._stream(), timeout_s)
            if source.data_ptr() != array.data_ptr():
                array.detach().copy_(source)
        return array

    def all_gather(self, array: Tensor, out: Tensor = None, *, timeout_s: float) -> Tensor:
        array, out, dtype = self._prepared(array, out, (self.size, *array.shape))
        if array.numel():
            self._group.all_gather(
                array.data_ptr(), out.data_ptr(), array.numel(), dtype.name, self._stream(), timeout_s
            )
        return out

    def reduce_scatter(self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float) -> Tensor:
        name = canonical_op(op)
        array, out, dtype = self._prepared(array, out, result_shape("reduce_scatter", tuple(array.shape), self.size))
        if array.numel():
            self._group.reduce_scatter(
                array.data_ptr(), out.data_ptr(), out.numel(), dtype.name, dtype.op(name), self._stream(), timeout_s
            )
            self._divide(out, name, dtype)
        return out

    def barrier(self, *, timeout_s: float) -> None:
        self.all_reduce(self._flag, "max", self._flag, timeout_s=timeout_s)
        torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Wait for queued calls, unless the group is broken, and release the communicator."""
        self._group.close()

    def _prepared(self, array: Tensor, out: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, _DType]:
        dtype = _require_dtype(array)
        array = array.detach().contiguous()
        if out is None:
            return array, torch.empty(shape, dtype=array.dtype, device=self._device), dtype
        _require_fit(out, shape, array)
        if not out.is_contiguous():
            raise ConfigurationError("got a result tensor that is not contiguous: pass a contiguous one")
        return array, out, dtype

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _divide(self, out: Tensor, name: str, dtype: _DType) -> None:
        if name == "mean" and dtype.divides:
            out.detach().div_(self.size, rounding_mode="trunc")


class HostTensors(Collective):
    """Combines tensors as ndarrays, copied from the device and back; ``host`` is borrowed."""

    def __init__(self, host: Collective) -> None:
        self.rank, self.size = host.rank, host.size
        self._host = host
        # Allocating page-locked memory takes longer than both copies, so it is cached.
        self._staged: dict[tuple[Any, ...], _Staged] = {}

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        if kind == "barrier":
            return self._host.barrier(timeout_s=timeout_s)
        if kind == "all_reduce" and out is array and array.is_cuda:
            return self._all_reduce_in_place(array, op, timeout_s, feedback)
        result_shape(kind, tuple(array.shape), self.size)
        fetched = _fetched(array)
        staged = np.array(fetched, order="C") if kind == "broadcast" else None
        result = self._host.call(kind, fetched if staged is None else staged, op, root, staged, timeout_s, feedback)
        return _stored(out, result, array)

    def _all_reduce_in_place(self, array: Tensor, op: str, timeout_s: float, feedback: Any) -> Tensor:
        _require_on_host(array)
        key = array.device, array.shape, array.dtype
        staged = self._staged.pop(key, None) or _Staged(array)
        self._staged[key] = staged  # The most recently used is last.
        if len(self._staged) > _STAGED:
            del self._staged[next(iter(self._staged))]
        values = staged.fetch(array)
        self._host.all_reduce(values, op, values, timeout_s=timeout_s, feedback=feedback)
        staged.store(array)
        return array

    def close(self) -> None:
        """Do nothing: the host's group is borrowed."""


class _Staged:
    """Page-locked memory for tensors of one shape and dtype on a CUDA device."""

    def __init__(self, array: Tensor) -> None:
        self._memory = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
        self._sent = torch.cuda.Event()

    def fetch(self, array: Tensor) -> np.ndarray[Any, Any]:
        """Copy a tensor to the host after the work on torch's current stream; wait for the copy."""
        self._sent.synchronize()
        self._memory.copy_(array.detach(), non_blocking=True)
        torch.cuda.current_stream(array.device).synchronize()
        fetched: np.ndarray[Any, Any] = self._memory.numpy()
        return fetched

    def store(self, array: Tensor) -> None:
        """Queue the copy to the device on torch's current stream."""
        array.detach().copy_(self._memory, non_blocking=True)
        self._sent.record(torch.cuda.current_stream(array.device))


def _require_dtype(array: Tensor) -> _DType:
    if array.layout is not torch.strided:
        raise ConfigurationError(
            f"got a tensor of layout {array.layout}: collectives take dense tensors; call to_dense()"
        )
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise ConfigurationError(f"got a tensor of dtype {array.dtype}: collectives take {', '.join(NCCL_CODES)}")
    return dtype


def _require_fit(out: Tensor, shape: tuple[int, ...], array: Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise ConfigurationError(f"got a tensor and out of type {type(out).__name__}: pass a tensor as out, or none")
    if (tuple(out.shape), out.dtype, out.device) != (shape, array.dtype, array.device):
        raise ConfigurationError(
            f"got out of shape {tuple(out.shape)} and {out.dtype} on {out.device}: the result has shape {shape}, "
            f"{array.dtype}, on {array.device}"
        )


def _require_on_host(array: Tensor) -> None:
    _require_dtype(array)
    if array.dtype is torch.bfloat16:
        raise ConfigurationError(
            "got a tensor of dtype torch.bfloat16, which cannot be summed on the host: pass tensor.float()"
        )


def _fetched(array: Tensor) -> np.ndarray[Any, Any]:
    _require_on_host(array)
    fetched: np.ndarray[Any, Any] = array.detach().contiguous().cpu().numpy()
    return fetched


def _stored(out: Tensor, result: np.ndarray[Any, Any], array: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.asarray(result))
    if out is None:
        return tensor.to(array.device)
    _require_fit(out, tuple(result.shape), array)
    out.detach().copy_(tensor)
    return out
