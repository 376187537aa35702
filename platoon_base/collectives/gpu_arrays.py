"""Collectives on GpuArrays through NCCL, by way of pygpu.

Calls are queued on the stream of the array's context and return at once. A thread watches the other ranks meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from pygpu import gpuarray
from pygpu.collectives import GpuComm, GpuCommCliqueId
from pygpu.elemwise import GpuElemwise, arg
from pygpu.gpuarray import dtype_to_typecode

from platoon_base.collectives.base import DTYPES, canonical_op, require_dtype, require_fit
from platoon_base.collectives.device_watch import DeviceWatch
from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.parameters import assign, is_device_array
from platoon_base.shm.calls import sign
from platoon_base.shm.liveness import Liveness

__all__ = ["NcclCollective", "new_clique_id"]

log = logging.getLogger(__name__)

_TYPECODES = {name: dtype_to_typecode(name) for name in DTYPES}
_INIT_TIMEOUT_S = 60
_OBJECT_HEAD_BYTES = 16  # of a PyObject; behind it a GpuComm has the pointer to its gpucomm {context, ncclComm_t}


class _Step(NamedTuple):
    """How NCCL makes an operation, and whether a division follows."""

    code: int
    op: str
    divide: bool = False


_STEPS = {name: _Step(code, name) for code, name in enumerate(("sum", "prod", "max", "min"))}
_STEPS["mean"] = _Step(4, "sum", divide=True)
_REDUCE_SCATTER, _ALL_GATHER, _BROADCAST = 8, 16, 32  # kinds of call besides the all-reduce, in their signatures


def new_clique_id(context: Any) -> bytes:
    """Make the 128 bytes by which the ranks of a new group find each other.

    Raises
    ------
    BackendUnavailableError
        If there is no NCCL.
    """
    try:
        return bytes(GpuCommCliqueId(context=context).comm_id)
    except Exception as exc:  # pygpu raises several of its own kinds
        raise BackendUnavailableError(
            f"NCCL does not work ({exc}): install it (libnccl2) where the loader finds libnccl.so"
        ) from exc


class NcclCollective:
    """One rank of a group of CUDA devices; see `Collective`.

    Parameters
    ----------
    context : pygpu GpuContext
    clique_id : bytes
        From `new_clique_id` on one of the ranks.
    ranks : tuple of int
        Of the job, in order.
    index : int
        This worker's index among them.
    liveness : Liveness
    call_word : ndarray, shape (1,) int64
        The word of the job's state in which the others see this worker's latest call.
    """

    def __init__(
        self, context: Any, clique_id: bytes, ranks: tuple[int, ...], index: int, liveness: Liveness, call_word: Any
    ) -> None:
        self.rank, self.size = index, len(ranks)
        self._context = context
        others = [rank for rank in ranks if rank != ranks[index]]
        self._watch = DeviceWatch(others, liveness, call_word, self._abort)
        self._flag: Any = None
        self._last: Any = None  # the result of the last call
        with _no_longer_than(_INIT_TIMEOUT_S):
            self._comm = GpuComm(GpuCommCliqueId(context=context, comm_id=bytearray(clique_id)), self.size, index)
        self._plain = frozenset(code for name, code in _TYPECODES.items() if self._carries(name))
        self._watch.start()

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        """See `Collective.all_reduce`."""
        step = _STEPS[op if type(op) is str and op in _STEPS else canonical_op(op)]
        # In place, as in every training step, there is little to check; all of it counts in microseconds.
        if out is not array or array.typecode not in self._plain or not array.flags.c_contiguous:
            array, out = self._prepared(array, out, array.shape)
            if array.typecode not in self._plain:
                return self._reduce_wide(self.all_reduce, array, step, out, timeout_s)
        if array.size:
            self._begin(sign(step.code, out.typecode, array.size), out, timeout_s)
            self._comm.all_reduce(array, step.op, out)
            if step.divide:
                self._divide(out)
        return out

    def broadcast(self, array: Any, root: int = 0, *, timeout_s: float) -> Any:
        """See `Collective.broadcast`."""
        if not 0 <= root < self.size:
            raise ConfigurationError(f"got root={root!r}: this group has the ranks 0 to {self.size - 1}")
        source, _ = self._prepared(array, array, array.shape)
        if source.typecode not in self._plain:
            assign(array, self.broadcast(_widened(source), root, timeout_s=timeout_s))
        elif source.size:
            self._begin(sign(_BROADCAST + root, source.typecode, source.size), source, timeout_s)
            self._comm.broadcast(source, root)
            if source is not array:
                assign(array, source)
        return array

    def all_gather(self, array: Any, out: Any = None, *, timeout_s: float) -> Any:
        """See `Collective.all_gather`."""
        array, out = self._prepared(array, out, (self.size, *array.shape))
        if array.typecode not in self._plain:
            assign(out, self.all_gather(_widened(array), timeout_s=timeout_s))
        elif array.size:
            self._begin(sign(_ALL_GATHER, out.typecode, array.size), out, timeout_s)
            self._comm.all_gather(array.reshape((1, array.size)), out.reshape((self.size, array.size)))
        return out

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, *, timeout_s: float) -> Any:
        """See `Collective.reduce_scatter`."""
        name = canonical_op(op)
        if not array.shape or array.shape[0] != self.size:
            raise ConfigurationError(
                f"got shape {array.shape}: the first axis must be as long as there are ranks, {self.size}"
            )
        array, out = self._prepared(array, out, array.shape[1:])
        step = _STEPS[name]
        if array.typecode not in self._plain:
            return self._reduce_wide(self.reduce_scatter, array, step, out, timeout_s)
        if array.size:
            self._begin(sign(_REDUCE_SCATTER + step.code, out.typecode, array.size), out, timeout_s)
            flat = array.reshape((self.size, out.size))
            self._comm.reduce_scatter(flat, step.op, out.reshape((1, out.size)))
            if step.divide:
                self._divide(out)
        return out

    def barrier(self, *, timeout_s: float) -> None:
        """See `Collective.barrier`."""
        if self._flag is None:
            self._flag = _new((1,), np.dtype("float32"), self._context)
        self.all_reduce(self._flag, "max", self._flag, timeout_s=timeout_s)
        np.asarray(self._flag)

    def close(self) -> None:
        """Wait for the calls that are queued, unless the group is broken, and let go of the communicator."""
        if self._watch.stopped:
            return
        try:
            if self._watch.broken is None and self._last is not None:
                np.asarray(self._last.reshape((self._last.size,))[:1])
        finally:
            self._watch.stop()
            # Destroying it would wait for the others, who may still need it: its memory stays until the process ends.
            handle = _find_comm(self._comm, self._context, self.size)
            if handle is not None:
                handle.value = 0
            self._last = None

    def _carries(self, dtype: str) -> bool:
        """Tell whether this libgpuarray passes a dtype on to NCCL; it refuses before it does anything."""
        try:
            self._comm.all_reduce(_new((1,), np.dtype(dtype), self._context), "sum")
        except gpuarray.GpuArrayException:
            return False
        return True

    def _prepared(self, array: Any, out: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
        require_dtype(array)
        if out is None:
            out = _new(shape, array.dtype, self._context)
        elif not is_device_array(out) or out.context.ptr != self._context.ptr:
            raise ConfigurationError(f"got {type(out).__name__} for the result: pass a GpuArray of the array's device")
        elif out is not array or out.shape != shape:
            require_fit(out, shape, array.dtype)
        if not array.flags.c_contiguous:
            array = array.copy("C")
        if not out.flags.c_contiguous:
            raise ConfigurationError("got an array that is not C-contiguous for the result: pass one that is")
        return array, out

    def _begin(self, signature: int, result: Any, timeout_s: float) -> None:
        self._watch.begin(signature, timeout_s)
        self._last = result

    def _reduce_wide(self, call: Any, array: Any, step: _Step, out: Any, timeout_s: float) -> Any:
        assign(out, call(_widened(array), step.op, timeout_s=timeout_s))
        if step.divide:
            self._divide(out)
        return out

    def _divide(self, out: Any) -> None:
        _divider(out.context, out.dtype)(out, self.size)

    def _abort(self) -> None:
        _abort_comm(self._comm, self._context, self.size)


@contextlib.contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """End the process with a traceback if NCCL does not come back: it holds the interpreter's lock meanwhile."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _find_comm(comm: Any, context: Any, size: int) -> ctypes.c_uint64 | None:
    """Find the word in which a GpuComm keeps its ncclComm_t, which pygpu does not show; 0 there is nobody's."""
    nccl = ctypes.CDLL("libnccl.so")
    address = ctypes.c_uint64.from_address(id(comm) + _OBJECT_HEAD_BYTES).value
    owner, handle = (ctypes.c_uint64.from_address(address + 8 * i) for i in range(2))
    count = ctypes.c_int(-1)
    known = owner.value == context.ptr and nccl.ncclCommCount(ctypes.c_void_p(handle.value), ctypes.byref(count)) == 0
    return handle if known and count.value == size else None


def _abort_comm(comm: Any, context: Any, size: int) -> None:
    """Call ncclCommAbort on the communicator within a GpuComm; pygpu has no way to."""
    handle = _find_comm(comm, context, size)
    if handle is None:
        log.error("this pygpu keeps its communicator elsewhere: the waiting kernel cannot be ended")
        return
    address, handle.value = handle.value, 0  # NCCL ignores a null communicator when pygpu frees its own
    ctypes.CDLL("libnccl.so").ncclCommAbort(ctypes.c_void_p(address))


def _new(shape: tuple[int, ...], dtype: Any, context: Any) -> Any:
    return gpuarray.empty(shape, dtype, context=context)


def _widened(array: Any) -> Any:
    """Copy to a dtype that NCCL is sure to be given; integers wrap around when they are copied back."""
    return array.astype("float32" if array.dtype.kind == "f" else "int32")


@functools.cache
def _divider(context: Any, dtype: Any) -> Callable[[Any, int], None]:
    """Compile ``value := value / ranks``, which for integers rounds toward zero as C does."""
    scalar = "int32" if dtype.kind in "iu" else "float64" if dtype == np.float64 else "float32"
    operands = [arg("value", dtype, scalar=False, read=True, write=True), arg("ranks", scalar, scalar=True)]
    compiled: Callable[[Any, int], None] = GpuElemwise(context, "value = value / ranks", operands, convert_f16=True)
    return compiled
