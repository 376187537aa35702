"""Collective calls on torch's tensors: on CUDA devices by NCCL, otherwise through the host.

`torch.distributed` is not used: Keras wraps models by itself if there is a default group, and its
watchdog would end a waiting process before the user gets an error that names the absent rank.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

from platoon_base.collectives.base import Collective, result_shape
from platoon_base.collectives.nccl_group import NcclCollective, NcclGroup
from platoon_base.collectives.staged import StagedCollective
from platoon_base.dtypes import NCCL_CODES
from platoon_base.errors import ConfigurationError
from platoon_base.torch_arrays import HostCopy

Tensor = Any

_STAGED = 64  # Number of shapes with cached page-locked memory.


_NAMES = {getattr(torch, name): name for name in NCCL_CODES}


class NcclTensors(NcclCollective):
    """Tensors of one device, in the order of torch's current stream."""

    def __init__(self, group: NcclGroup, device: torch.device) -> None:
        super().__init__(group)
        self._device = device

    def broadcast(self, array: Tensor, root: int = 0, *, timeout_s: float) -> Tensor:
        source = array.detach().contiguous()
        super().broadcast(source, root, timeout_s=timeout_s)
        if source.data_ptr() != array.data_ptr():
            array.detach().copy_(source)
        return array

    def barrier(self, *, timeout_s: float) -> None:
        self.all_reduce(torch.zeros(1, device=self._device), timeout_s=timeout_s)
        torch.cuda.current_stream(self._device).synchronize()

    def prepared(self, array: Tensor, out: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, str]:
        name = _require_dtype(array)
        if out is None:
            out = torch.empty(shape, dtype=array.dtype, device=self._device)
        else:
            _require_fit(out, shape, array)
            if not out.is_contiguous():
                raise ConfigurationError("got a result tensor that is not contiguous: pass a contiguous one")
        return array.detach().contiguous(), out, name

    def memory(self, array: Tensor, out: Tensor) -> contextlib.AbstractContextManager[tuple[int, int, int]]:
        stream = int(torch.cuda.current_stream(self._device).cuda_stream)
        return contextlib.nullcontext((array.data_ptr(), out.data_ptr(), stream))

    def divides(self, dtype: str) -> bool:
        return "int" in dtype  # NCCL averages floats itself.

    def divide(self, out: Tensor) -> None:
        out.detach().div_(self.size, rounding_mode="trunc")


class HostTensors(StagedCollective):
    """Combines tensors as ndarrays, copied from the device and back; ``host`` is borrowed."""

    def __init__(self, host: Collective) -> None:
        super().__init__(host)
        self._staged: dict[tuple[Any, ...], HostCopy] = {}

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        if kind == "all_reduce" and out is array and getattr(array, "is_cuda", False):
            return self._all_reduce_in_place(array, op, timeout_s, feedback)
        return super().call(kind, array, op, root, out, timeout_s, feedback)

    def _all_reduce_in_place(self, array: Tensor, op: str, timeout_s: float, feedback: Any) -> Tensor:
        with self._refusing():
            _require_on_host(array)
        key = array.device, array.shape, array.dtype
        staged = self._staged.pop(key, None) or HostCopy(array)
        self._staged[key] = staged  # The most recently used is last.
        if len(self._staged) > _STAGED:
            del self._staged[next(iter(self._staged))]
        staged.start(array)
        values = staged.wait()
        self._host.all_reduce(values, op, values, timeout_s=timeout_s, feedback=feedback)
        staged.write(array)
        return array

    def _target(self, kind: str, array: Tensor, out: Any) -> Any:
        shape = result_shape(kind, tuple(array.shape), self.size)
        if out is not None:
            _require_fit(out, shape, array)
        return out

    def _fetch(self, array: Tensor) -> np.ndarray[Any, Any]:
        _require_on_host(array)
        fetched: np.ndarray[Any, Any] = array.detach().contiguous().cpu().numpy()
        return fetched

    def _store(self, out: Any, staged: np.ndarray[Any, Any], array: Tensor) -> Tensor:
        tensor = torch.from_numpy(np.asarray(staged))
        if out is None:
            return tensor.to(array.device)
        out.detach().copy_(tensor)
        return out

    def close(self) -> None:
        """Do nothing: the host's group is borrowed."""


def _require_dtype(array: Tensor) -> str:
    if array.layout is not torch.strided:
        raise ConfigurationError(
            f"got a tensor of layout {array.layout}: collectives take dense tensors; call to_dense()"
        )
    if array.dtype not in _NAMES:
        raise ConfigurationError(f"got a tensor of dtype {array.dtype}: collectives take {', '.join(NCCL_CODES)}")
    return _NAMES[array.dtype]


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
