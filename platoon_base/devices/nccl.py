"""NCCL's own C functions, on memory by its address: that of a GpuArray, of torch's tensors, or of XLA's buffers.

They are those of NCCL 2.10 and later, in the library that the framework has loaded already if it has one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from platoon_base.errors import BackendUnavailableError, PlatoonError

__all__ = ["DTYPE_CODES", "OP_CODES", "Communicator", "Transfer", "load_nccl", "new_unique_id"]

DTYPE_CODES = {
    "int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
OP_CODES = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}

_LIBRARIES = ("libnccl.so.2", "libnccl.so")  # the second for those who have the first under that name alone
_ID_BYTES = 128


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * _ID_BYTES)]


_ADDRESS, _COUNT, _CODE = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS = {
    "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(ctypes.c_void_p), _CODE, _UniqueId, _CODE],
    "ncclCommAbort": [_ADDRESS],
    "ncclGetErrorString": [_CODE],
    "ncclAllReduce": [_ADDRESS, _ADDRESS, _COUNT, _CODE, _CODE, _ADDRESS, _ADDRESS],
    "ncclReduceScatter": [_ADDRESS, _ADDRESS, _COUNT, _CODE, _CODE, _ADDRESS, _ADDRESS],
    "ncclAllGather": [_ADDRESS, _ADDRESS, _COUNT, _CODE, _ADDRESS, _ADDRESS],
    "ncclBroadcast": [_ADDRESS, _ADDRESS, _COUNT, _CODE, _CODE, _ADDRESS, _ADDRESS],
    "ncclSend": [_ADDRESS, _COUNT, _CODE, _CODE, _ADDRESS, _ADDRESS],
    "ncclRecv": [_ADDRESS, _COUNT, _CODE, _CODE, _ADDRESS, _ADDRESS],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
}


class Transfer(NamedTuple):
    """Bytes that go to another rank, or come from it.

    Attributes
    ----------
    rank, address, nbytes : int
    """

    rank: int
    address: int
    nbytes: int


def new_unique_id() -> bytes:
    """Make the 128 bytes by which the ranks of a new group find each other.

    Raises
    ------
    BackendUnavailableError
        If there is no NCCL.
    """
    unique_id = _UniqueId()
    try:
        _call("ncclGetUniqueId", ctypes.byref(unique_id))
    except PlatoonError as exc:
        raise BackendUnavailableError(str(exc)) from exc
    return bytes(unique_id.bytes)


class Communicator:
    """One rank's end of a group, on the device that is CUDA's current one when it is made.

    Every call is queued on a stream and returns at once, but for the first, which may wait for the others. Nobody but
    `abort` ends a wait for a rank that is gone.

    Parameters
    ----------
    unique_id : bytes
        From `new_unique_id` on one of the ranks.
    size, rank : int
        Number of ranks, and this one.
    """

    def __init__(self, unique_id: bytes, size: int, rank: int) -> None:
        self._handle = ctypes.c_void_p()
        id_ = _UniqueId.from_buffer_copy(unique_id)
        _call("ncclCommInitRank", ctypes.byref(self._handle), size, id_, rank)

    def all_reduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """Combine ``count`` elements; addresses, codes of `DTYPE_CODES` and `OP_CODES`, and a cudaStream_t."""
        _call("ncclAllReduce", source, target, count, dtype, op, self._handle, stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        """Combine, and keep this rank's ``count`` elements."""
        _call("ncclReduceScatter", source, target, count, dtype, op, self._handle, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        """Put the ``count`` elements of each rank one behind the other."""
        _call("ncclAllGather", source, target, count, dtype, self._handle, stream)

    def broadcast(self, address: int, count: int, dtype: int, root: int, stream: int) -> None:
        """Copy the elements of rank ``root`` into those of the others."""
        _call("ncclBroadcast", address, address, count, dtype, root, self._handle, stream)

    def exchange(self, sent: Sequence[Transfer], received: Sequence[Transfer], stream: int) -> None:
        """Send bytes to other ranks and receive bytes from others, all at once; they do the counterparts."""
        of_bytes = DTYPE_CODES["uint8"]
        _call("ncclGroupStart")
        try:
            for name, transfers in (("ncclSend", sent), ("ncclRecv", received)):
                for rank, address, nbytes in transfers:
                    _call(name, address, nbytes, of_bytes, rank, self._handle, stream)
        finally:
            _call("ncclGroupEnd")

    @property
    def abort_call(self) -> tuple[int, int]:
        """The addresses of the C function, and of its argument, that end what waits, from another thread; once."""
        function = ctypes.cast(load_nccl().ncclCommAbort, ctypes.c_void_p)
        return int(function.value or 0), int(self._handle.value or 0)

    def abort(self) -> None:
        """End what waits, on the device and on the host, from another thread; once, by this or by `abort_call`."""
        load_nccl().ncclCommAbort(self._handle)


@functools.cache
def load_nccl() -> Any:
    """Load the library.

    Raises
    ------
    BackendUnavailableError
        If it is not there, or too old.
    """
    try:
        library = _found()
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as exc:
        raise BackendUnavailableError(
            f"NCCL does not work ({exc}): install nvidia-nccl-cu12 or -cu13 as PyTorch's own wheels do, or libnccl2"
        ) from exc
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


def _found() -> Any:
    for name in _LIBRARIES[:-1]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(_LIBRARIES[-1])


def _call(name: str, *args: Any) -> None:
    library = load_nccl()
    code = getattr(library, name)(*args)
    if code:
        raise PlatoonError(f"{name} failed: {library.ncclGetErrorString(code).decode(errors='replace')}")
