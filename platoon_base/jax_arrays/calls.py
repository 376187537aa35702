"""Calls of Python from XLA's compiled programs, without copies of arguments and results.

The C extension ``_gates`` reads the calls. Importing this module without it, or with JAX before 0.5,
raises `ImportError`.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np

from platoon_base import _gates as gates
from platoon_base.dtypes import XLA_CODES, Array

log = logging.getLogger(__name__)

_TARGET, _STREAM_TARGET = "platoon_call_in_place", "platoon_call_on_stream"
_BY_CODE = {code: np.dtype(name) for name, code in XLA_CODES.items()}


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
    weakref.finalize(owner, heapq.heappush, _free, number).atexit = False
    return Gate(number)


# The handlers of calls, by their numbers in the programs. They must outlive the programs, which an
# exception of theirs ends.
_handlers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_free = [*range(gates.GATES)]  # Free numbers of gates.
_numbers = itertools.count(gates.GATES)  # Numbers of calls without a gate.
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


def _answer(number: int, results: list[Any], arguments: list[Any], stream: int) -> bytes | None:
    """Handle a call of XLA, in one of its threads; return the text of an error, or None."""
    try:
        if arguments:  # Only of calls in place.
            *outs, _ = map(_array, results)
            *ins, scalar = map(_array, arguments[: len(results)])
            _handlers[number](outs, ins, float(scalar))
        else:
            _handlers[number]([Block(address, size, _BY_CODE[code]) for address, size, code in results], stream)
    except BaseException as exc:
        log.debug("a call from a compiled program failed", exc_info=True)
        return f"{type(exc).__name__}: {exc}".encode(errors="replace")
    return None


def _array(buffer: tuple[int, int, int, tuple[int, ...]]) -> Array:
    address, size, code, shape = buffer
    dtype = _BY_CODE[code]
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array


for _name, _platform, _function in zip(
    (_TARGET, _STREAM_TARGET, _STREAM_TARGET), ("cpu", "cpu", "CUDA"), gates.targets(_answer)
):
    jax.ffi.register_ffi_target(_name, _function, platform=_platform)
