"""The few calls of CUDA's driver that pygpu lacks: host memory that devices reach, and copies beside the stream."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from platoon_base.errors import BackendUnavailableError

__all__ = ["HostMemory"]

_MAPPED, _PORTABLE = 2, 1
_NON_BLOCKING = 1
_NOT_READY = 600


class HostMemory:
    """Shared memory that a device can reach, and a stream of its own for copies to it.

    Parameters
    ----------
    context : pygpu GpuContext, of CUDA
    address, size_bytes : int
        Of the memory, at whole pages.

    Attributes
    ----------
    device_address : int
        Where the device finds the memory.
    """

    def __init__(self, context: Any, address: int, size_bytes: int) -> None:
        self._context = context
        self._address = address
        self._cuda = _load("libcuda.so.1")
        library = _load("libgpuarray.so.3")
        library.gpuarray_get_extension.restype = ctypes.c_void_p
        library.gpuarray_get_extension.argtypes = [ctypes.c_char_p]
        extension = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._enter = extension(library.gpuarray_get_extension(b"cuda_enter"))
        self._exit = extension(library.gpuarray_get_extension(b"cuda_exit"))
        self._stream = ctypes.c_void_p()
        found = ctypes.c_uint64()
        with self._entered():
            self._call(
                "cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), _MAPPED | _PORTABLE
            )
            try:
                self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), ctypes.c_void_p(address), 0)
                self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
            except BaseException:
                self._call("cuMemHostUnregister", ctypes.c_void_p(address))
                raise
        self.device_address = int(found.value)
        self._closed = False

    def start_copy(self, source: int, offset: int, size_bytes: int) -> None:
        """Begin to copy device memory at address ``source`` to ``offset`` of the host's, beside all other work."""
        with self._entered():
            target = ctypes.c_void_p(self._address + offset)
            self._call(
                "cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(source), ctypes.c_size_t(size_bytes), self._stream
            )

    @property
    def copying(self) -> bool:
        """Whether a copy is still under way."""
        with self._entered():
            return bool(self._cuda.cuStreamQuery(self._stream) == _NOT_READY)

    def finish_copies(self) -> None:
        """Wait for the copies begun."""
        with self._entered():
            self._call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Let the memory go; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with self._entered():
            self._cuda.cuStreamSynchronize(self._stream)
            self._cuda.cuStreamDestroy_v2(self._stream)
            self._cuda.cuMemHostUnregister(ctypes.c_void_p(self._address))

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        self._enter(self._context.ptr)
        try:
            yield
        finally:
            self._exit(self._context.ptr)

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._cuda, name)(*args)
        if code:
            raise BackendUnavailableError(
                f"CUDA's {name} failed with error {code}: the center cannot live in GPU memory here; "
                "launch with --center host"
            )


def _load(library: str) -> Any:
    try:
        return ctypes.CDLL(library)
    except OSError as exc:
        raise BackendUnavailableError(f"{library} cannot be loaded ({exc}): launch with --center host") from exc
