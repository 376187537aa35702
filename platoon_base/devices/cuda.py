"""CUDA without a framework: calls of its driver and of its compiler, NVRTC.

`discovery` calls the driver in a separate process, and `isolation` before its initialization.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.errors import BackendUnavailableError

HANDLE_BYTES = 64  # Size of a CUDA IPC handle.
# The driver shares whole blocks of this size; smaller pieces could not be opened separately.
_BLOCK_BYTES = 2 << 20
_MAPPED, _PORTABLE = 2, 1
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
_NOT_READY = 600
_OUT_OF_MEMORY = 2
_NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
_INSTALL = "pip install 'platoon-plugins[cuda]'"
OF_CENTER = "the center cannot be in GPU memory here; launch with --center host"


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


class DriverError(BackendUnavailableError):
    """A call of CUDA's driver has failed."""


class Driver:
    """CUDA's driver in the context of the parameters' framework; ``enter`` makes it current."""

    def __init__(
        self, enter: Callable[[], object] = bool, leave: Callable[[], object] = bool, remedy: str = OF_CENTER
    ) -> None:
        self._remedy = remedy
        self._cuda = load("libcuda.so.1")
        self._enter, self._leave = enter, leave
        self.spare: dict[int, list[int]] = {}  # Unused shared memory: addresses by size in bytes.

    def call(self, name: str, *args: Any, ignore: tuple[int, ...] = ()) -> int:
        """Call a function of the driver; raise `DriverError` on codes not in ``ignore``."""
        self._enter()
        try:
            code = int(getattr(self._cuda, name)(*args))
        finally:
            self._leave()
        if code and code not in ignore:
            what = ", out of memory" if code == _OUT_OF_MEMORY else ""
            raise DriverError(f"CUDA's {name} failed with error {code}{what}: {self._remedy}")
        return code

    # Device.

    def ordinal(self) -> int:
        """Return the driver's number of the context's device."""
        current, device, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(current))
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            if device.value == current.value:
                return number
        raise DriverError(f"CUDA does not count the device of this context: {self._remedy}")

    def multiprocessors(self, ordinal: int) -> int:
        return self._attribute(_MULTIPROCESSORS, ordinal)

    def machine(self, ordinal: int) -> str:
        """Return a device's architecture, such as ``"sm_90"``."""
        return f"sm_{self._attribute(_MAJOR, ordinal)}{self._attribute(_MINOR, ordinal)}"

    def _attribute(self, number: int, ordinal: int) -> int:
        device, found = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.call("cuDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(number), device)
        return found.value

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """Allocate memory of zeros, and return its address."""
        found, size = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
        self.call("cuMemAlloc_v2", ctypes.byref(found), size)
        self.clear(int(found.value), nbytes)
        return int(found.value)

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def allocate_on_host(self, nbytes: int) -> int:
        """Allocate page-locked host memory for asynchronous copies, and return its address."""
        found = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE))
        return int(found.value or 0)

    def pin(self, address: int, nbytes: int) -> None:
        """Lock host pages for copies at full speed, and for access by devices."""
        flags = ctypes.c_uint(_PORTABLE | _MAPPED)
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(nbytes), flags)

    def unpin(self, address: int) -> None:
        self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def clear(self, address: int, nbytes: int) -> None:
        """Fill memory with zeros, and wait."""
        self.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        self._finish_copies()

    def write(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Copy C-contiguous values of the host to the device, and wait."""
        source, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)
        self._finish_copies()

    def read(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Fill a C-contiguous array of the host from the device, and wait."""
        target, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        self.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), size)

    def queue_write(self, address: int, values: np.ndarray[Any, Any], stream: int) -> None:
        """Queue a copy of C-contiguous host values, which may be changed immediately afterwards."""
        # The driver copies values in pageable memory before it returns.
        source, size = ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), source, size, ctypes.c_void_p(stream))

    def queue_read(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy from device address ``source`` to ``target``, in page-locked memory."""
        to, size = ctypes.c_void_p(target), ctypes.c_size_t(nbytes)
        self.call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(source), size, ctypes.c_void_p(stream))

    def queue_word(self, address: int, word: int, stream: int) -> None:
        """Queue the writing of a 32-bit word."""
        one = ctypes.c_size_t(1)
        self.call("cuMemsetD32Async", ctypes.c_uint64(address), ctypes.c_uint(word), one, ctypes.c_void_p(stream))

    def _finish_copies(self) -> None:
        # The driver may still copy from its own buffer, on the default stream; others do not wait
        # for it.
        self.call("cuStreamSynchronize", None)

    # Order.

    def new_stream(self) -> int:
        """Create a stream that waits for no other one."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return int(stream.value or 0)

    def close_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def is_working(self, stream: int) -> bool:
        """Return whether a stream has unfinished work."""
        return self.call("cuStreamQuery", ctypes.c_void_p(stream), ignore=(_NOT_READY,)) == _NOT_READY

    def finish(self, stream: int | None = None) -> None:
        """Wait for the work of a stream, or of the whole context."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def new_event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMES))
        return event

    def record(self, event: ctypes.c_void_p, stream: int) -> None:
        """Record an event after the work queued on a stream so far."""
        self.call("cuEventRecord", event, ctypes.c_void_p(stream))

    def follow(self, stream: int, event: ctypes.c_void_p) -> None:
        """Make later work on a stream wait for an event."""
        self.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, ctypes.c_uint(0))

    def wait_for(self, event: ctypes.c_void_p) -> None:
        """Wait for an event on the host."""
        self.call("cuEventSynchronize", event)

    # Kernels.

    def load_kernel(self, code: bytes, name: str) -> ctypes.c_void_p:
        """Load machine code from `compile_source`, and return one of its kernels."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(self, kernel: ctypes.c_void_p, values: Sequence[Any], stream: int, blocks: int, threads: int) -> None:
        """Queue a kernel, with ctypes values as its arguments."""
        one, nothing = ctypes.c_uint(1), ctypes.c_uint(0)
        grid, block = (ctypes.c_uint(blocks), one, one), (ctypes.c_uint(threads), one, one)
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.call("cuLaunchKernel", kernel, *grid, *block, nothing, ctypes.c_void_p(stream), arguments, None)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()


class DeviceMemory:
    """Memory of a device that other processes may open; use `allocate` or `open`."""

    def __init__(self, driver: Driver, address: int, nbytes: int) -> None:
        # Allocated memory is kept until the process ends: it must outlive the processes that opened
        # it.
        self._driver = driver
        self.address = address
        self.nbytes = nbytes

    @classmethod
    def allocate(cls, driver: Driver, nbytes: int) -> DeviceMemory:
        """Allocate memory of zeros, from memory passed to `reuse` if possible."""
        whole = -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES
        spare = driver.spare.get(whole)
        if not spare:
            return cls(driver, driver.allocate(whole), nbytes)
        address = spare.pop()
        driver.clear(address, whole)
        return cls(driver, address, nbytes)

    def reuse(self) -> None:
        """Release allocated memory that no other process has open or will open."""
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
        """Handle for `open` in another process."""
        handle = _Handle()
        self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle.bytes)

    def write(self, offset: int, values: np.ndarray[Any, Any]) -> None:
        """Copy host bytes to ``offset``, and wait."""
        self._driver.write(self.address + offset, values)

    def copy(self, other: DeviceMemory, offset: int) -> None:
        """Copy memory of the same size from ``offset`` on, and wait."""
        size = ctypes.c_size_t(self.nbytes - offset)
        target, source = ctypes.c_uint64(self.address + offset), ctypes.c_uint64(other.address + offset)
        self._driver.call("cuMemcpyDtoD_v2", target, source, size)
        self._driver.finish()

    def close(self) -> None:
        """Close memory that was opened."""
        self._driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(self.address))


class HostMemory:
    """Page-aligned shared memory accessible to a device, and a stream for copies to it."""

    def __init__(self, driver: Driver, address: int, size_bytes: int) -> None:
        self._driver = driver
        self._address = address
        self._closed = False
        found = ctypes.c_uint64()
        driver.pin(address, size_bytes)
        try:
            driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), ctypes.c_void_p(address), 0)
            self._stream = driver.new_stream()
        except BaseException:
            driver.unpin(address)
            raise
        self.device_address = int(found.value)

    def start_copy(self, source: int, offset: int, size_bytes: int) -> None:
        """Start an asynchronous copy of device memory at ``source`` to ``offset``."""
        self._driver.queue_read(self._address + offset, source, size_bytes, self._stream)

    @property
    def copying(self) -> bool:
        return self._driver.is_working(self._stream)

    def finish_copies(self) -> None:
        self._driver.finish(self._stream)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.finish_copies()
        self._driver.close_stream(self._stream)
        self._driver.unpin(self._address)


def primary_driver(ordinal: int, remedy: str = OF_CENTER) -> Driver:
    """Return the driver in a device's primary context, where torch and JAX compute."""
    # The context is kept until the process ends, like the memory that others have open.
    bare, device, context, left = Driver(remedy=remedy), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    bare.call("cuInit", ctypes.c_uint(0))
    bare.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    bare.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return Driver(
        lambda: bare.call("cuCtxPushCurrent_v2", context),
        lambda: bare.call("cuCtxPopCurrent_v2", ctypes.byref(left)),
        remedy,
    )


def device_identity(ordinal: int) -> str:
    """Return the UUID of a CUDA device."""
    driver, found, device = primary_driver(ordinal), (ctypes.c_ubyte * 16)(), ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    driver.call("cuDeviceGetUuid_v2", ctypes.byref(found), device)
    return bytes(found).hex()


def load(library: str) -> Any:
    """Load a system library, or raise `BackendUnavailableError`."""
    try:
        return ctypes.CDLL(library)
    except OSError as exc:
        raise BackendUnavailableError(f"cannot load {library} ({exc}): launch with --center host") from exc


def nvrtc_version() -> str:
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def compile_source(source: str, machine: str) -> bytes:
    """Compile CUDA C++ for a machine such as ``"sm_90"``; may raise `BackendUnavailableError`."""
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={machine}".encode()]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(code):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            said = b" " * (size + 1)  # Written to: Python shares one-byte objects.
            nvrtc.nvrtcGetProgramLog(program, said)
            text = said.decode(errors="replace").strip("\0 \n") or str(code)
            raise BackendUnavailableError(
                f"NVRTC could not compile kernels for {machine}: {text[:500]}; install the newest nvidia-cuda-nvrtc "
                "that your driver takes"
            )
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        machine_code: bytes = b" " * (size + 1)
        nvrtc.nvrtcGetCUBIN(program, machine_code)
        return machine_code[:size]
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        code, *_ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as exc:  # Raised without cuda-bindings or NVRTC.
        reason = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise BackendUnavailableError(
            f"cannot compile kernels for GPUs, because cuda-bindings with NVRTC is not installed ({reason}): {_INSTALL}"
        ) from exc
    if int(code):
        raise BackendUnavailableError(f"cannot compile kernels for GPUs: NVRTC returned {code}; {_INSTALL}")
    return nvrtc
