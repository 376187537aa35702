"""Calls of Python from XLA's compiled programs, without copies of arguments and results.

The C structures are those of ``xla/ffi/api/c_api.h``, version 0.1 and later: they only grow at
their ends and contain their sizes.
"""

from __future__ import annotations

import ctypes
import functools
import heapq
import importlib
import itertools
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.dtypes import XLA_CODES, Array

log = logging.getLogger(__name__)

gates: Any = None  # The C extension, if it was built.
try:
    gates = importlib.import_module("platoon_base._gates")
except ImportError as exc:
    log.debug("the C extension is missing (%s), so each call from a compiled program runs in Python", exc)

_TARGET, _STREAM_TARGET = "platoon_call_in_place", "platoon_call_on_stream"
_EXECUTE, _METADATA, _INTERNAL = 3, 1, 13
# The version of the interface.
_VERSION = (0, 1)
_BY_CODE = {code: np.dtype(name) for name, code in XLA_CODES.items()}

_Pointer = ctypes.c_void_p
_HEAD: list[Any] = [("size", ctypes.c_size_t), ("extension", _Pointer)]


class _Extension(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", _Pointer), ("metadata", _Pointer)]


class _Version(ctypes.Structure):
    _fields_ = [*_HEAD, ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _Buffer(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("dtype", ctypes.c_int),
        ("data", _Pointer),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("count", ctypes.c_int64),
        ("types", _Pointer),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("count", ctypes.c_int64),
        ("types", _Pointer),
        ("names", _Pointer),
        ("values", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [*_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class _StreamArguments(ctypes.Structure):
    _fields_ = [*_HEAD, ("context", _Pointer), ("stream", _Pointer)]


_GetStream = ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_StreamArguments))
_MakeError = ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("version", _Version),
        ("internal", _Pointer),
        ("make_error", _MakeError),
        ("others", _Pointer * 3),
        ("get_stream", _GetStream),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", _Pointer),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


class Block(NamedTuple):
    """Memory of ``size`` elements, valid for kernels that are queued during the call."""

    address: int
    size: int
    dtype: np.dtype[Any]


class Gate:
    """Keeps the calls of one handler from Python, in all programs, until one is admitted."""

    # `number` identifies the calls in programs; the lowest free one, as JAX may cache programs on
    # disk.

    def __init__(self, number: int) -> None:
        self.number = number
        self.shut()

    def shut(self) -> None:
        """Admit no call."""
        gates.set_gate(self.number, 0)

    def let_one_in(self) -> None:
        """Admit only the next call."""
        gates.set_gate(self.number, 1)

    @property
    def came(self) -> int:
        """The number of calls, admitted or not."""
        count: int = gates.calls_of(self.number)
        return count


def gate_of(owner: Any) -> Gate | None:
    """Make a gate that lasts as long as its owner; None if no gate is free."""
    if not _free:
        return None
    number = heapq.heappop(_free)
    weakref.finalize(owner, _free_again, number).atexit = False
    return Gate(number)


def _free_again(number: int) -> None:
    _dtypes.pop(number, None)
    heapq.heappush(_free, number)


# The handlers of calls, by their numbers in the programs. They must outlive the programs, which an
# exception of theirs ends.
_handlers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# Dtypes of the results, by the same numbers.
_dtypes: dict[int, list[np.dtype[Any]]] = {}
_free = [] if gates is None else [*range(gates.GATES)]  # Free numbers of gates.
_numbers = itertools.count(len(_free))  # Numbers of calls without a gate.
# The trace that made the latest call, and a result of that call.
_latest: tuple[Any, Any] = (None, None)


def call_in_place(fill: Callable[..., None], arrays: Sequence[Any], scalar: Any) -> list[Any]:
    """Return what ``fill(outs, ins, scalar)`` makes of float arrays, in memory of a CPU program."""
    # ``outs`` may share memory with ``ins``. The calls of one program are made in the order in which
    # they were traced.
    *outs, _ = _call(_TARGET, fill, [*arrays, jnp.asarray(scalar, np.float32)])
    return outs


def call_on_stream(
    queue: Callable[..., None], arrays: Sequence[Any], after: Sequence[Any] = (), gate: Gate | None = None
) -> list[Any]:
    """Return float arrays as changed by the work that ``queue(blocks, stream)`` queues on CUDA."""
    # Calls are made in the order in which they were traced, and after `after` is computed. With a
    # `gate` the calls always have the same arrays, and a program makes one.
    return _call(_STREAM_TARGET, queue, arrays, after, gate)


def _call(
    target: str, handler: Any, ins: Sequence[Any], before: Sequence[Any] = (), gate: Gate | None = None
) -> list[Any]:
    """Add a call to a program, after its earlier calls; results are in the memory of arguments."""
    # JAX starts programs with declared side effects slowly, so none is declared. XLA does not
    # remove the call, as its results are used, or merge calls, as their numbers differ.
    global _latest
    number = next(_numbers) if gate is None else gate.number
    _handlers[number] = handler
    _dtypes[number] = [np.dtype(array.dtype) for array in ins]
    if gate is None:
        weakref.finalize(handler, _dtypes.pop, number).atexit = False
    call = jax.ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in ins],
        input_output_aliases={i: i for i in range(len(ins))},
        vmap_method="broadcast_all",
    )
    trace = next((array._trace for array in (*ins, *before) if isinstance(array, jax.core.Tracer)), None)
    # XLA may run two calls at the same time unless one depends on a result of the other.
    earlier, token = _latest
    after = [*before, token] if trace is not None and trace is earlier else before
    outs = list(call(*ins, *after, filler=np.int64(number)))
    if trace is None:
        jax.block_until_ready(outs[-1])
    else:
        _latest = trace, outs[-1]
    return outs


def _in_place(frame: Any) -> None:
    *outs, _ = _arrays(frame.results)
    *ins, scalar = _arrays(frame.arguments)[: len(outs) + 1]
    _handlers[_number_of(frame)](outs, ins, float(scalar))


def _on_cuda(frame: Any) -> None:
    arguments = _StreamArguments(ctypes.sizeof(_StreamArguments), None, frame.context, None)
    if frame.api.contents.get_stream(ctypes.byref(arguments)):
        raise RuntimeError("XLA passed no stream")
    _queue(frame, arguments.stream or 0)


def _on_cpu(frame: Any) -> None:
    _queue(frame, 0)


def _queue(frame: Any, stream: int) -> None:
    number = _number_of(frame)
    blocks = [Block(address, size, dtype) for (address, size), dtype in zip(_places(frame), _dtypes[number])]
    _handlers[number](blocks, stream)


def _places(frame: Any) -> list[tuple[int, int]]:
    """Return the address and the number of elements of each result."""
    if gates is not None:
        found: list[tuple[int, int]] = gates.results(ctypes.addressof(frame))
        return found
    buffers = [frame.results.buffers[i].contents for i in range(frame.results.count)]
    return [(buffer.data or 0, _size(buffer)) for buffer in buffers]


def _number_of(frame: Any) -> int:
    number: int = frame.attributes.values[0].contents.value[0]
    return number


def _answer(make_call: Callable[[Any], None], pointer: Any) -> int | None:
    """Handle a call of XLA, in one of its threads; return an error of XLA, or None."""
    frame = pointer.contents
    try:
        if frame.extension and frame.extension.contents.type == _METADATA:
            metadata = ctypes.cast(frame.extension.contents.metadata, ctypes.POINTER(_Metadata)).contents
            metadata.version.major, metadata.version.minor = _VERSION
        elif frame.stage == _EXECUTE:
            make_call(frame)
    except BaseException as exc:
        log.debug("a call from a compiled program failed", exc_info=True)
        message = f"{type(exc).__name__}: {exc}".encode()
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL)
        error: int | None = frame.api.contents.make_error(ctypes.byref(arguments))
        return error
    return None


def _arrays(buffers: Any) -> list[Array]:
    return [_array(buffers.buffers[i].contents) for i in range(buffers.count)]


def _array(buffer: Any) -> Array:
    dtype = _BY_CODE[buffer.dtype]
    shape, size = buffer.dims[: buffer.rank], _size(buffer) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(buffer.data)
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array


def _size(buffer: Any) -> int:
    return math.prod(buffer.dims[: buffer.rank])


_Handler = ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_Frame))
# Keeps the entries alive, as XLA only has their addresses.
_entries = [_Handler(functools.partial(_answer, make_call)) for make_call in (_in_place, _on_cpu, _on_cuda)]


def _register() -> None:
    in_place, *on_streams = _entries
    if gates is not None:
        first, second = (ctypes.cast(handler, _Pointer).value for handler in on_streams)
        on_streams = [_Handler(address) for address in gates.stand_before(first, second)]
    targets = (
        (_TARGET, "cpu", in_place),
        (_STREAM_TARGET, "cpu", on_streams[0]),
        (_STREAM_TARGET, "CUDA", on_streams[1]),
    )
    for name, platform, handler in targets:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=platform)


_register()
