"""Calls of CUDA's driver: memory to share, host memory that devices reach, copies aside."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from platoon_base.errors import BackendUnavailableError

__all__ = ["HANDLE_BYTES", "DeviceMemory", "Driver", "DriverError", "HostMemory", "load", "primary_driver"]

HANDLE_BYTES = 64  # by which CUDA IPC opens memory
# The driver shares whole blocks of this size; smaller pieces of one could not be opened apart.
_BLOCK_BYTES = 2 << 20
_MAPPED, _PORTABLE = 2, 1
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
_NOT_READY = 600
_OUT_OF_MEMORY = 2
_OF_CENTER = "the center cannot live in GPU memory here; launch with --center host"


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


class DriverError(BackendUnavailableError):
    """A call of CUDA's driver has failed."""


class Driver:
    """CUDA's driver, within the context in which the parameters' framework computes.

    Parameters
    ----------
    enter, leave : callable
        Make the context current for a call, and what was current before it again; left out, calls are made as they
        are.
    remedy : str
        What the error about a call that fails says at its end.

    Attributes
    ----------
    spare : dict of int to list of int
        Memory for others that serves nobody at present: the addresses of each size in bytes.
    """

    def __init__(
        self, enter: Callable[[], object] = bool, leave: Callable[[], object] = bool, remedy: str = _OF_CENTER
    ) -> None:
        self._remedy = remedy
        self._cuda = load("libcuda.so.1")
        self._enter, self._leave = enter, leave
        self.spare: dict[int, list[int]] = {}

    def call(self, name: str, *args: Any, ignore: tuple[int, ...] = ()) -> int:
        """Call a function of the driver.

        Raises
        ------
        DriverError
            If it fails with another code than those in ``ignore``.
        """
        self._enter()
        try:
            code = int(getattr(self._cuda, name)(*args))
        finally:
            self._leave()
        if code and code not in ignore:
            what = ", out of memory" if code == _OUT_OF_MEMORY else ""
            raise DriverError(f"CUDA's {name} failed with error {code}{what}: {self._remedy}")
        return code

    def allocate(self, nbytes: int) -> int:
        """Allocate memory of zeros, and return its address."""
        found, size = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
        self.call("cuMemAlloc_v2", ctypes.byref(found), size)
        self.clear(int(found.value), nbytes)
        return int(found.value)

    def clear(self, address: int, nbytes: int) -> None:
        """Fill memory with zeros, and wait for it."""
        self.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        self._finish_copies()

    def write(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Copy C-contiguous values of the host to the device, and wait for it."""
        source, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)
        self._finish_copies()

    def queue_write(self, address: int, values: np.ndarray[Any, Any], stream: int) -> None:
        """Queue a copy of C-contiguous values of the host on a stream; they may be changed at once."""
        # The driver takes values in pageable memory over before it returns.
        source, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), source, size, ctypes.c_void_p(stream))

    def _finish_copies(self) -> None:
        # The driver goes on copying from a buffer of its own, on the default stream: others do not wait for that one.
        self.call("cuStreamSynchronize", None)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make the context current while the block runs."""
        self._enter()
        try:
            yield
        finally:
            self._leave()


class DeviceMemory:
    """Memory of a device that other processes may open; use `allocate` or `open`.

    Allocated memory stays until the process ends: CUDA wants it to outlive the processes that have it open.
    `allocate` takes what `reuse` was given before it asks the driver.

    Attributes
    ----------
    address, nbytes : int
    """

    def __init__(self, driver: Driver, address: int, nbytes: int) -> None:
        self._driver = driver
        self.address = address
        self.nbytes = nbytes

    @classmethod
    def allocate(cls, driver: Driver, nbytes: int) -> DeviceMemory:
        """Allocate memory of zeros."""
        whole = -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES
        spare = driver.spare.get(whole)
        if not spare:
            return cls(driver, driver.allocate(whole), nbytes)
        address = spare.pop()
        driver.clear(address, whole)
        return cls(driver, address, nbytes)

    def reuse(self) -> None:
        """Give back memory that was allocated, and that no other process has open or will open."""
        self._driver.spare.setdefault(-(-self.nbytes // _BLOCK_BYTES) * _BLOCK_BYTES, []).append(self.address)

    @classmethod
    def open(cls, driver: Driver, handle: bytes, nbytes: int) -> DeviceMemory:
        """Open memory of another process by its handle."""
        found = ctypes.c_uint64()
        driver.call(
            "cuIpcOpenMemHandle_v2",
            ctypes.byref(found),
            _Handle.from_buffer_copy(handle),
            ctypes.c_uint(_LAZY_PEER_ACCESS),
        )
        return cls(driver, int(found.value), nbytes)

    @property
    def handle(self) -> bytes:
        """The handle by which another process opens this memory."""
        handle = _Handle()
        self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle.bytes)

    def write(self, offset: int, values: np.ndarray[Any, Any]) -> None:
        """Copy bytes of the host to ``offset``, and wait for it."""
        self._driver.write(self.address + offset, values)

    def copy(self, other: DeviceMemory, offset: int) -> None:
        """Copy another memory of the same size from ``offset`` on, and wait for it."""
        size = ctypes.c_size_t(self.nbytes - offset)
        target, source = ctypes.c_uint64(self.address + offset), ctypes.c_uint64(other.address + offset)
        self._driver.call("cuMemcpyDtoD_v2", target, source, size)
        self._driver.call("cuCtxSynchronize")

    def close(self) -> None:
        """Close memory that was opened."""
        self._driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(self.address))


class HostMemory:
    """Shared memory that a device can reach, and a stream of its own for copies to it.

    Parameters
    ----------
    driver : Driver
    address, size_bytes : int
        Of the memory, at whole pages.

    Attributes
    ----------
    device_address : int
        Where the device finds the memory.
    """

    def __init__(self, driver: Driver, address: int, size_bytes: int) -> None:
        self._driver = driver
        self._address = address
        self._stream = ctypes.c_void_p()
        self._closed = False
        found = ctypes.c_uint64()
        memory = ctypes.c_void_p(address)
        driver.call("cuMemHostRegister_v2", memory, ctypes.c_size_t(size_bytes), _MAPPED | _PORTABLE)
        try:
            driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), memory, 0)
            driver.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        except BaseException:
            driver.call("cuMemHostUnregister", memory)
            raise
        self.device_address = int(found.value)

    def start_copy(self, source: int, offset: int, size_bytes: int) -> None:
        """Begin to copy device memory at address ``source`` to ``offset`` of the host's, beside all other work."""
        target, size = ctypes.c_void_p(self._address + offset), ctypes.c_size_t(size_bytes)
        self._driver.call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(source), size, self._stream)

    @property
    def copying(self) -> bool:
        """Whether a copy is still under way."""
        return self._driver.call("cuStreamQuery", self._stream, ignore=(_NOT_READY,)) == _NOT_READY

    def finish_copies(self) -> None:
        """Wait for the copies begun."""
        self._driver.call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Let the memory go; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.finish_copies()
        self._driver.call("cuStreamDestroy_v2", self._stream)
        self._driver.call("cuMemHostUnregister", ctypes.c_void_p(self._address))


def primary_driver(ordinal: int, remedy: str = _OF_CENTER) -> Driver:
    """Return the driver within a device's primary context, in which torch and JAX compute.

    The context is kept until the process ends, as the memory that others have open.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, or no such device.
    """
    bare, device, context, left = Driver(remedy=remedy), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    bare.call("cuInit", ctypes.c_uint(0))
    bare.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    bare.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return Driver(
        lambda: bare.call("cuCtxPushCurrent_v2", context),
        lambda: bare.call("cuCtxPopCurrent_v2", ctypes.byref(left)),
        remedy,
    )


def load(library: str) -> Any:
    """Load a library of the system.

    Raises
    ------
    BackendUnavailableError
        If it is not there.
    """
    try:
        return ctypes.CDLL(library)
    except OSError as exc:
        raise BackendUnavailableError(f"{library} cannot be loaded ({exc}): launch with --center host") from exc
