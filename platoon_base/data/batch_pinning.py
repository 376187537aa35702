"""Page-locked (pinned) slots, from which a GPU copies at full speed while the worker computes.

CUDA's driver locks the memory of the slots as it is, so no batch is copied once more. It does so for all frameworks of
the process: PyTorch, JAX, TensorFlow, and Theano by pygpu. Nothing here does the same for OpenCL.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Mark", "Pinning"]

Mark = Sequence[tuple[Any, Any]]

_PORTABLE = 1  # pinned for all contexts
_NO_TIMING = 2
_NOT_READY = 600


class Pinning:
    """The CUDA contexts that this process computes in; use `find`."""

    def __init__(self, cuda: Any, contexts: list[ctypes.c_void_p]) -> None:
        self._cuda = cuda
        self._contexts = contexts
        self._addresses: dict[int, int] = {}  # of pinned memory, by slot

    @classmethod
    def find(cls) -> Pinning | None:
        """Return the pinning of this process; None if it does not compute on CUDA, or not yet."""
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        count = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        contexts = []
        for device in range(count.value):
            flags, active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
            if cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) or not active.value:
                continue
            if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
                contexts.append(context)
        return cls(cuda, contexts) if contexts else None

    def pin(self, index: int, memory: Any) -> int:
        """Lock the memory of a slot; returns CUDA's error code, 0 for success."""
        address = int(memory.ctypes.data)
        with self._entered(self._contexts[0]):
            code = int(
                self._cuda.cuMemHostRegister_v2(
                    ctypes.c_void_p(address), ctypes.c_size_t(memory.nbytes), ctypes.c_uint(_PORTABLE)
                )
            )
        if code == 0:
            self._addresses[index] = address
        return code

    def unpin(self, index: int) -> None:
        """Unlock the memory of a slot, before it is unmapped."""
        address = self._addresses.pop(index, None)
        if address is not None:
            with self._entered(self._contexts[0]):
                self._cuda.cuMemHostUnregister(ctypes.c_void_p(address))

    def mark(self) -> Mark:
        """Record an event on the GPUs: copies queued before it may still read the memory."""
        mark = []
        for context in self._contexts:
            event = ctypes.c_void_p()
            with self._entered(context):
                if self._cuda.cuEventCreate(ctypes.byref(event), ctypes.c_uint(_NO_TIMING)) == 0:
                    self._cuda.cuEventRecord(event, ctypes.c_void_p(_stream()))
                    mark.append((context, event))
        return mark

    def is_over(self, mark: Mark) -> bool:
        """Return whether all copies queued before an event have ended."""
        for context, event in mark:
            with self._entered(context):
                if self._cuda.cuEventQuery(event) == _NOT_READY:
                    return False
        for context, event in mark:
            with self._entered(context):
                self._cuda.cuEventDestroy_v2(event)
        return True

    def wait(self) -> None:
        """Wait for all work of the GPUs, so that none reads memory that is about to be unlocked."""
        for context in self._contexts:
            with self._entered(context):
                self._cuda.cuCtxSynchronize()

    @contextlib.contextmanager
    def _entered(self, context: ctypes.c_void_p) -> Iterator[None]:
        before = ctypes.c_void_p()
        self._cuda.cuCtxPushCurrent_v2(context)
        try:
            yield
        finally:
            self._cuda.cuCtxPopCurrent_v2(ctypes.byref(before))


def _stream() -> int:
    """Return the stream that copies are queued on: torch's current one, or the one that waits for all others."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)
