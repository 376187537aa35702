"""Flat buffers: one collective call moves many arrays, ndarrays or pygpu's GpuArrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.errors import ConfigurationError

# Host arrays of this size have their own call: it costs less than two copies (190 us, 2 workers on
# 2 cores).
ALONE_BYTES = 1 << 18


def by_dtype(arrays: Sequence[Any]) -> list[list[int]]:
    """Group the indices of arrays by dtype, in the order of the first appearance of each dtype."""
    groups: dict[np.dtype[Any], list[int]] = {}
    for index, array in enumerate(arrays):
        groups.setdefault(np.dtype(array.dtype), []).append(index)
    return list(groups.values())


def pack(arrays: Sequence[Any], buffer: Any = None) -> Any:
    """Copy arrays of one dtype and device into ``buffer``, shape (n,), or a new one; return it."""
    if buffer is None:
        buffer = _empty_like(arrays[0], sum(array.size for array in arrays))
    start = 0
    for array in arrays:
        stop = start + array.size
        if array.size:
            buffer[start:stop] = array.reshape((array.size,))
        start = stop
    return buffer


def unpack(buffer: Any, arrays: Sequence[Any]) -> None:
    """Copy a flat buffer back into C-contiguous arrays of its dtype: the inverse of `pack`."""
    if not all(array.flags.c_contiguous for array in arrays):
        raise ConfigurationError("got an array that is not C-contiguous: a buffer cannot be unpacked into it; copy it")
    start = 0
    for array in arrays:
        stop = start + array.size
        if array.size:
            array.reshape((array.size,))[...] = buffer[start:stop]
        start = stop


class FlatBuffers:
    """Buffers for a repeated call with the same arrays, one per dtype and device.

    ``one_stream`` says that all work on a device is queued in one stream, as in Theano's contexts;
    on CUDA one kernel then packs any number of arrays, by their addresses. With ``compress``, each
    call has its own `ErrorFeedback`, kept between calls of `combine`.
    """

    def __init__(self, one_stream: bool = False, compress: bool = False) -> None:
        self._one_stream = one_stream
        self._feedback: dict[Any, ErrorFeedback] | None = {} if compress else None
        self._buffers: dict[Any, Any] = {}
        self._kernels: dict[Any, Any] = {}

    def combine(
        self,
        call: Callable[[Any, str, Any], Any],
        op: str,
        arrays: Sequence[Any],
        outs: Sequence[Any],
        names: Sequence[Any] = (),
    ) -> None:
        """Combine arrays with those of the other ranks, in one call for each dtype.

        ``call(array, op, dest)`` combines flat arrays, as ``all_reduce`` of a `Collective` does;
        both may be the same array. With ``compress`` it also gets ``feedback=``. ``outs`` are
        C-contiguous; each may be the array with the same index but must not overlap with others.
        Residuals are stored by ``names``, by default the indices.
        """
        names = names or range(len(arrays))
        for indices in by_dtype(arrays):
            # Choose the calls by dtypes and sizes only: they are the same on all ranks, memory
            # layouts may differ.
            packed = [i for i in indices if not _is_sent_unpacked(arrays[i])]
            alone = [i for i in indices if _is_sent_unpacked(arrays[i]) or len(packed) == 1]
            for i in alone:
                flat = _flat(arrays[i])
                # A back end works in place if both arguments are the same object.
                self._with_feedback(call, names[i])(flat, op, flat if outs[i] is arrays[i] else _flat(outs[i]))
            if len(packed) > 1:
                call_packed = self._with_feedback(call, tuple(names[i] for i in packed))
                self._combine_packed(call_packed, op, [arrays[i] for i in packed], [outs[i] for i in packed])

    def _with_feedback(self, call: Callable[..., Any], arrays: Any) -> Callable[..., Any]:
        if self._feedback is None:
            return call
        return functools.partial(call, feedback=self._feedback.setdefault(arrays, ErrorFeedback()))

    def _combine_packed(
        self, call: Callable[[Any, str, Any], Any], op: str, ins: Sequence[Any], outs: Sequence[Any]
    ) -> None:
        if self._one_stream and _on_cuda(ins[0]):
            self._combine_by_kernel(call, op, ins, outs)
            return
        buffer = pack(ins, self._buffer(ins[0], sum(array.size for array in ins)))
        call(buffer, op, buffer)
        unpack(buffer, outs)

    def _combine_by_kernel(
        self, call: Callable[[Any, str, Any], Any], op: str, ins: Sequence[Any], outs: Sequence[Any]
    ) -> None:
        device = _device()
        ins = [_flat(array) for array in ins]
        key = _key(ins[0])
        if key not in self._kernels:
            self._kernels[key] = device.Packer(ins[0])
        # Each rank appends a 1, so the last element of the sum is the number of ranks. It must not
        # be compressed.
        counted = op == "mean" and self._feedback is None and device.averages(ins[0].dtype)
        buffer = self._buffer(ins[0], sum(array.size for array in ins) + counted)
        self._kernels[key].pack(ins, buffer, counted)
        call(buffer, "sum" if counted else op, buffer)
        self._kernels[key].unpack(buffer, outs, counted)

    def _buffer(self, like: Any, size: int) -> Any:
        key = _key(like)
        if key not in self._buffers or self._buffers[key].size < size:
            self._buffers[key] = _empty_like(like, size)
        return self._buffers[key][:size]


def _is_sent_unpacked(array: Any) -> bool:
    """Return whether a separate call costs less than packing the array."""
    # On devices, copies cost almost nothing.
    return isinstance(array, np.ndarray) and array.nbytes >= ALONE_BYTES


def _flat(array: Any) -> Any:
    return (array if array.flags.c_contiguous else array.copy(order="C")).reshape((array.size,))


def _on_device(array: Any) -> bool:
    return not isinstance(array, np.ndarray) and hasattr(array, "context")


def _on_cuda(array: Any) -> bool:
    return _on_device(array) and array.context.kind == b"cuda"


def _device() -> Any:
    """Import the module for devices; pygpu is already loaded if there is a GpuArray."""
    from platoon_base.collectives import flat_device

    return flat_device


def _empty_like(array: Any, size: int) -> Any:
    return _device().empty_like(array, size) if _on_device(array) else np.empty(size, array.dtype)


def _key(array: Any) -> tuple[Any, Any]:
    return np.dtype(array.dtype), array.context.ptr if _on_device(array) else None
