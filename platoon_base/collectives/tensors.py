"""Collectives on torch's tensors: on CUDA devices by NCCL, without torch.distributed, and else by way of the host.

`torch.distributed` would do as well, but for two things: once it has a default group, Keras wraps models by itself, and
its own watchdog ends the process of a worker that waits, before the user is told who is gone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from platoon_base.collectives.base import Collective, canonical_op, canonical_root, require_timeout
from platoon_base.collectives.device_guard import HAVE_GUARD, DeviceGuard
from platoon_base.collectives.device_watch import DeviceWatch
from platoon_base.collectives.nccl_library import DTYPE_CODES, OP_CODES, Communicator, new_unique_id
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.shm.calls import sign
from platoon_base.shm.liveness import Liveness

__all__ = ["HostTensors", "NcclTensors", "new_unique_id", "unique_device"]

Tensor = Any

_LOOK_S = 0.05
_TENSORS, _REDUCE_SCATTER, _ALL_GATHER, _BROADCAST = 64, 8, 16, 32  # kinds of call, in their signatures


class _DType(NamedTuple):
    code: int
    divides: bool  # NCCL's mean of integers is not asked for: it is rounded toward zero here as everywhere


_DTYPES = {
    getattr(torch, name): _DType(code, not getattr(torch, name).is_floating_point)
    for name, code in DTYPE_CODES.items()
}  # fmt: skip


def unique_device(device: torch.device) -> str:
    """Return what tells a CUDA device from all others of this host."""
    return str(torch.cuda.get_device_properties(device).uuid)


class NcclTensors:
    """One rank of a group of CUDA devices, one each; see `Collective`.

    Calls are queued on torch's current stream and return at once. A thread watches the other ranks meanwhile.

    Parameters
    ----------
    device : torch.device
    unique_id : bytes
        From `new_unique_id` on one of the ranks.
    ranks : tuple of int
        Of the job, in order.
    index : int
        This worker's index among them.
    liveness : Liveness
    call_word : ndarray, shape (1,) int64
        The word of the job's state in which the others see this worker's latest call.
    timeout_s : float
        Bound on the wait for the others.

    Raises
    ------
    WorkerLostError
        If one of them is gone.
    CollectiveTimeoutError
        If some did not come in time.
    """

    def __init__(
        self,
        device: torch.device,
        unique_id: bytes,
        ranks: tuple[int, ...],
        index: int,
        liveness: Liveness,
        call_word: Any,
        timeout_s: float,
    ) -> None:
        self.rank, self.size = index, len(ranks)
        self._device = device
        others = [rank for rank in ranks if rank != ranks[index]]
        self._comm = _Joining(device, unique_id, self.size, index).wait(others, liveness, timeout_s)
        guard, abort = None, self._comm.abort
        if HAVE_GUARD:
            guard = DeviceGuard(others, liveness, call_word, *self._comm.abort_call)
            abort = guard.end
        self._watch = DeviceWatch(others, liveness, call_word, abort, guard)
        self._watch.start()
        self._flag = torch.zeros(1, device=device)

    def all_reduce(self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.all_reduce`."""
        name = canonical_op(op)
        array, out, dtype = self._prepared(array, out, tuple(array.shape))
        if array.numel():
            code = OP_CODES["sum" if name == "mean" and dtype.divides else name]
            with self._call(code, dtype, array.numel(), timeout_s) as stream:
                self._comm.all_reduce(array.data_ptr(), out.data_ptr(), array.numel(), dtype.code, code, stream)
            self._divide(out, name, dtype)
        return out

    def broadcast(self, array: Tensor, root: int = 0, *, timeout_s: float) -> Tensor:
        """See `Collective.broadcast`."""
        root = canonical_root(root, self.size)
        source, _, dtype = self._prepared(array, None, ())
        if source.numel():
            with self._call(_BROADCAST + root, dtype, source.numel(), timeout_s) as stream:
                self._comm.broadcast(source.data_ptr(), source.numel(), dtype.code, root, stream)
            if source.data_ptr() != array.data_ptr():
                array.detach().copy_(source)
        return array

    def all_gather(self, array: Tensor, out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.all_gather`."""
        array, out, dtype = self._prepared(array, out, (self.size, *array.shape))
        if array.numel():
            with self._call(_ALL_GATHER, dtype, array.numel(), timeout_s) as stream:
                self._comm.all_gather(array.data_ptr(), out.data_ptr(), array.numel(), dtype.code, stream)
        return out

    def reduce_scatter(self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.reduce_scatter`."""
        name = canonical_op(op)
        _require_rows(array, self.size)
        array, out, dtype = self._prepared(array, out, tuple(array.shape[1:]))
        if array.numel():
            code = OP_CODES["sum" if name == "mean" and dtype.divides else name]
            with self._call(_REDUCE_SCATTER + code, dtype, array.numel(), timeout_s) as stream:
                self._comm.reduce_scatter(array.data_ptr(), out.data_ptr(), out.numel(), dtype.code, code, stream)
            self._divide(out, name, dtype)
        return out

    def barrier(self, *, timeout_s: float) -> None:
        """See `Collective.barrier`."""
        self.all_reduce(self._flag, "max", self._flag, timeout_s=timeout_s)
        torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Wait for the calls that are queued, unless the group is broken, and let go of the communicator."""
        if self._watch.stopped:
            return
        try:
            if self._watch.broken is None:
                torch.cuda.synchronize(self._device)
        finally:
            # Destroying the communicator would wait for the others: its memory stays until the process ends.
            self._watch.stop()

    def _prepared(self, array: Tensor, out: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, _DType]:
        """Return contiguous tensors and NCCL's view of the dtype; ``shape`` is that of the result."""
        dtype = _require_dtype(array)
        array = array.detach().contiguous()
        if out is None:
            return array, torch.empty(shape, dtype=array.dtype, device=self._device), dtype
        _require_fit(out, shape, array)
        if not out.is_contiguous():
            raise ConfigurationError("got a result tensor that is not contiguous: pass one that is")
        return array, out, dtype

    @contextlib.contextmanager
    def _call(self, kind: int, dtype: _DType, count: int, timeout_s: float) -> Iterator[int]:
        """Yield the stream of a call, and give the reason if NCCL fails in it because another rank is gone."""
        require_timeout(timeout_s)
        self._watch.begin(sign(_TENSORS + kind, dtype.code, count), timeout_s)
        here = torch.cuda.current_device() == self._device.index
        try:
            with contextlib.nullcontext() if here else torch.cuda.device(self._device):
                yield int(torch.cuda.current_stream(self._device).cuda_stream)
        except PlatoonError:
            self._watch.wait_for_fault()
            raise

    def _divide(self, out: Tensor, name: str, dtype: _DType) -> None:
        if name == "mean" and dtype.divides:
            out.detach().div_(self.size, rounding_mode="trunc")


class HostTensors:
    """Combines tensors as arrays of the host, those of devices by a copy there and back.

    Parameters
    ----------
    host : Collective
        For ndarrays; closed by its owner.
    """

    def __init__(self, host: Collective) -> None:
        self.rank, self.size = host.rank, host.size
        self._host = host

    def all_reduce(self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.all_reduce`."""
        return _stored(out, self._host.all_reduce(_fetched(array), op, timeout_s=timeout_s), array)

    def broadcast(self, array: Tensor, root: int = 0, *, timeout_s: float) -> Tensor:
        """See `Collective.broadcast`."""
        staged = np.array(_fetched(array), order="C")
        return _stored(array, self._host.broadcast(staged, root, timeout_s=timeout_s), array)

    def all_gather(self, array: Tensor, out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.all_gather`."""
        return _stored(out, self._host.all_gather(_fetched(array), timeout_s=timeout_s), array)

    def reduce_scatter(self, array: Tensor, op: str = "sum", out: Tensor = None, *, timeout_s: float) -> Tensor:
        """See `Collective.reduce_scatter`."""
        _require_rows(array, self.size)
        return _stored(out, self._host.reduce_scatter(_fetched(array), op, timeout_s=timeout_s), array)

    def barrier(self, *, timeout_s: float) -> None:
        """See `Collective.barrier`."""
        self._host.barrier(timeout_s=timeout_s)

    def close(self) -> None:
        """Do nothing: the host's group is another's."""


class _Joining:
    """The forming of a group, in a thread, as nothing ends NCCL's wait for a rank that died on its way there."""

    def __init__(self, device: torch.device, unique_id: bytes, size: int, index: int) -> None:
        self._arguments = device, unique_id, size, index
        self._comm: Communicator | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._join, name="platoon-nccl-join", daemon=True)

    def wait(self, others: Sequence[int], liveness: Liveness, timeout_s: float) -> Communicator:
        """Form it, and wait for the others."""
        deadline = time.monotonic() + timeout_s
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            lost = [rank for rank in others if liveness.gone(rank) or liveness.died(rank)]
            if lost and self._thread.is_alive():
                raise WorkerLostError(f"a group of devices cannot be formed: {liveness.why_absent(lost)}")
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for NCCL to connect the devices: NCCL_DEBUG=INFO tells what it tries; or "
                    "give a longer timeout_s"
                )
        if self._comm is None:
            raise self._failure or PlatoonError("a group of devices cannot be formed")
        return self._comm

    def _join(self) -> None:
        device, unique_id, size, index = self._arguments
        try:
            with torch.cuda.device(device):
                comm = Communicator(unique_id, size, index)
                # The first call connects the devices, and may wait for the others as long as they need.
                first = torch.zeros(1, device=device)
                stream = torch.cuda.current_stream(device)
                at = first.data_ptr()
                comm.all_reduce(at, at, 1, DTYPE_CODES["float32"], OP_CODES["sum"], int(stream.cuda_stream))
                stream.synchronize()
                self._comm = comm
        except Exception as exc:
            self._failure = exc


def _require_dtype(array: Tensor) -> _DType:
    if array.layout is not torch.strided:
        raise ConfigurationError(f"got a tensor of layout {array.layout}: collectives take dense tensors; to_dense()")
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise ConfigurationError(f"got a tensor of dtype {array.dtype}: collectives take {', '.join(DTYPE_CODES)}")
    return dtype


def _require_rows(array: Tensor, size: int) -> None:
    if not array.shape or array.shape[0] != size:
        raise ConfigurationError(
            f"got shape {tuple(array.shape)}: the first axis must be as long as there are ranks, {size}"
        )


def _require_fit(out: Tensor, shape: tuple[int, ...], array: Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise ConfigurationError(f"got a tensor and out of type {type(out).__name__}: pass a tensor as out, or none")
    if (tuple(out.shape), out.dtype, out.device) != (shape, array.dtype, array.device):
        raise ConfigurationError(
            f"got out of shape {tuple(out.shape)} and {out.dtype} on {out.device}: the result has shape {shape}, "
            f"{array.dtype}, on {array.device}"
        )


def _fetched(array: Tensor) -> np.ndarray[Any, Any]:
    _require_dtype(array)
    if array.dtype is torch.bfloat16:
        raise ConfigurationError("got a tensor of dtype torch.bfloat16: the host has no such sums; pass tensor.float()")
    fetched: np.ndarray[Any, Any] = array.detach().contiguous().cpu().numpy()
    return fetched


def _stored(out: Tensor, result: np.ndarray[Any, Any], array: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.asarray(result))
    if out is None:
        return tensor.to(array.device)
    _require_fit(out, tuple(result.shape), array)
    out.detach().copy_(tensor)
    return out
