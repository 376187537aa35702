"""C functions of NCCL 2.10 and later, on device memory by address.

The library is the one that the framework has already loaded, if any.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from platoon_base.dtypes import NCCL_CODES
from platoon_base.errors import BackendUnavailableError, PlatoonError

CALLS = {
    "all_reduce": "ncclAllReduce",
    "reduce_scatter": "ncclReduceScatter",
    "all_gather": "ncclAllGather",
    "broadcast": "ncclBroadcast",
}
OP_CODES = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}

# Some installations have only the second name.
LIBRARIES = ("libnccl.so.2", "libnccl.so")
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
    """Bytes sent to another rank, or received from it."""

    rank: int
    address: int
    nbytes: int


def new_unique_id() -> bytes:
    """Create the 128-byte id of a new group; raise `BackendUnavailableError` without NCCL."""
    unique_id = _UniqueId()
    try:
        _call("ncclGetUniqueId", ctypes.byref(unique_id))
    except PlatoonError as exc:
        raise BackendUnavailableError(str(exc)) from exc
    return bytes(unique_id.bytes)


class Communicator:
    """One rank's end of a group, on CUDA's current device; all ranks pass the same id."""

    def __init__(self, unique_id: bytes, size: int, rank: int) -> None:
        # Calls are queued on a stream and return immediately; the first may wait for the other
        # ranks. Only `abort` ends a wait for a lost rank.
        self._handle = ctypes.c_void_p()
        id_ = _UniqueId.from_buffer_copy(unique_id)
        _call("ncclCommInitRank", ctypes.byref(self._handle), size, id_, rank)

    def call(
        self, kind: str, source: int, target: int, count: int, dtype: int, parameters: Sequence[int], stream: int
    ) -> None:
        """Make a call of `CALLS`, whose ``parameters`` are the code of an operation, a root, or none."""
        _call(CALLS[kind], source, target, count, dtype, *parameters, self._handle, stream)

    def exchange(self, sent: Sequence[Transfer], received: Sequence[Transfer], stream: int) -> None:
        """Send and receive bytes at the same time; the other ranks make the matching calls."""
        of_bytes = NCCL_CODES["uint8"]
        _call("ncclGroupStart")
        try:
            for name, transfers in (("ncclSend", sent), ("ncclRecv", received)):
                for rank, address, nbytes in transfers:
                    _call(name, address, nbytes, of_bytes, rank, self._handle, stream)
        finally:
            _call("ncclGroupEnd")

    @property
    def abort_call(self) -> tuple[int, int]:
        """Addresses of the C function and of its argument that abort from another thread; once."""
        function = ctypes.cast(load_nccl().ncclCommAbort, ctypes.c_void_p)
        return int(function.value or 0), int(self._handle.value or 0)

    def abort(self) -> None:
        """Abort waits on device and host, from another thread; once, by this or by `abort_call`."""
        load_nccl().ncclCommAbort(self._handle)


@functools.cache
def load_nccl() -> Any:
    """Load the library; raise `BackendUnavailableError` if it is missing or too old."""
    try:
        library = _found()
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as exc:
        raise BackendUnavailableError(
            f"NCCL does not work ({exc}): install nvidia-nccl-cu12 or -cu13, which PyTorch's own "
            "wheels use, or libnccl2"
        ) from exc
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


def _found() -> Any:
    for name in LIBRARIES[:-1]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(LIBRARIES[-1])


def _call(name: str, *args: Any) -> None:
    library = load_nccl()
    code = getattr(library, name)(*args)
    if code:
        raise PlatoonError(f"{name} failed: {library.ncclGetErrorString(code).decode(errors='replace')}")
