"""Averages of TensorFlow's gradients; that of an embedding is a list of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from platoon_base.dtypes import Array
from platoon_plugins.keras.backends.aligned import AlignedArrays
from platoon_plugins.keras.gradients import Batch, CompiledAverage

# Alignment of each array in the gathered buffers.
_ALIGNMENT_BYTES = 64


class TensorFlowAverage(CompiledAverage):
    """Averages gradients of TensorFlow, in memory that it uses without a copy and frees later."""

    # The gradient of an embedding (`tf.IndexedSlices`) has a row for each look-up, with
    # repetitions. Adam adds sum_k g_k^2 to the second moment of a row, not (sum_k g_k)^2. Equal
    # rows are therefore not summed: a second collective call gathers w_i g_ik / sum_j w_j of the
    # look-ups k of workers i.

    _lists = True

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._arrays = AlignedArrays()
        # The gradients that were lists of rows in the latest step.
        self._slices: tuple[int, ...] = ()
        self._mine_of: dict[int, tuple[Array, Array]] = {}
        self._gathered: dict[int, tuple[Array, Array]] = {}
        self._row_buffers: dict[str, Array] = {}

    def average_in_program(self, batch: Batch) -> Sequence[Any]:
        """Return the averages of a batch, computed by ``tf.numpy_function``."""
        sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in batch.gradients]
        tensors: list[Any] = []
        for gradient, is_list in zip(batch.gradients, sparse):
            if is_list:
                tensors += [gradient.values, tf.cast(gradient.indices, tf.int64)]
            else:
                tensors.append(tf.convert_to_tensor(gradient))
        is_sum = batch.weight is None

        def call(weight: Any, *arrays: Any) -> list[Any]:
            return self.of_arrays(Batch(arrays, None if is_sum else weight, batch.used), sparse)

        weight = 1.0 if is_sum else batch.weight
        results = iter(tf.numpy_function(call, [weight, *tensors], [tensor.dtype for tensor in tensors]))
        return [
            _rows(gradient, next(results), next(results)) if is_list else _shaped(next(results), gradient.shape)
            for gradient, is_list in zip(batch.gradients, sparse)
        ]

    def of_arrays(self, batch: Batch, sparse: Sequence[bool]) -> list[Array]:
        """Return the averages, and for lists of rows those of all workers."""
        # If `sparse[i]`, gradient i is passed as two arrays: values, and row numbers of dtype
        # int64.
        remaining = (np.asarray(array, order="C") for array in batch.gradients)
        dense, self._mine_of, self._gathered = [], {}, {}
        for i, is_list in enumerate(sparse):
            array = next(remaining)
            if is_list:
                self._mine_of[i] = array, next(remaining)
            dense.append(array[:0] if is_list else array)
        self._slices = tuple(self._mine_of)
        averages = [self._arrays.empty(array.shape, array.dtype) for array in dense]
        self.fill(batch._replace(gradients=dense), averages)
        results: list[Array] = []
        for i, (average, is_list) in enumerate(zip(averages, sparse)):
            nothing = average, np.zeros(0, np.int64)  # Used after an error, which is raised later.
            results += self._gathered.get(i, nothing) if is_list else [average]
        return results

    def _step(self, batch: Batch, outs: Sequence[Array]) -> None:
        super()._step(batch, outs)
        self._all.require_used_alike(self.like)

    def _exchange(self, ins: Sequence[Array], outs: Sequence[Array], weight: float, is_sum: bool) -> None:
        counts = self._mine.counts[self.worker.global_rank]
        counts[:] = 0
        for i, (_, numbers) in self._mine_of.items():
            counts[i] = len(numbers)
        super()._exchange(ins, outs, weight, is_sum)
        if self._slices:
            self._gather(np.rint(self._all.counts).astype(np.int64), is_sum)

    def _call_without_gradients(self) -> None:
        known = self.like
        self.like = [array[:0] if i in self._slices else array for i, array in enumerate(known)]
        self._mine_of = {}
        try:
            super()._call_without_gradients()
        finally:
            self.like = known

    def _gather(self, counts: Array, is_sum: bool) -> None:
        """Gather the rows of all workers; ``counts[i, g]`` is worker i's number for gradient g."""
        places, size = {}, 0
        for g in self._slices:
            like = self._mine_of[g][0] if g in self._mine_of else self.like[g]
            longest = int(counts[:, g].max())
            for part, (shape, dtype) in enumerate([(like.shape[1:], like.dtype), ((), np.dtype(np.int64))]):
                places[g, part] = _Place(size, shape, dtype)
                size += -(-longest * places[g, part].row_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if not size:  # No worker has a batch.
            return
        mine, everyones = self._memory("mine", size), self._memory("everyones", self.worker.global_size * size)
        total = float(self._all.weights.sum(dtype=np.float64))
        factor = 1.0 if is_sum else float(self._mine.weights[self.worker.global_rank]) / total
        for g, (values, numbers) in self._mine_of.items():
            np.multiply(values, values.dtype.type(factor), out=places[g, 0].of(mine, len(numbers)))
            places[g, 1].of(mine, len(numbers))[...] = numbers
        received = self.worker.all_gather(mine, everyones.reshape(-1, size))
        for (g, part), place in places.items():
            parts = [place.of(memory, count) for memory, count in zip(received, counts[:, g])]
            self._gathered[g] = (*self._gathered.get(g, ())[:part], np.concatenate(parts))  # type: ignore[assignment]

    def _memory(self, name: str, size: int) -> Array:
        """Return bytes of a reused buffer: new memory would take longer than the copy."""
        if name not in self._row_buffers or len(self._row_buffers[name]) < size:
            self._row_buffers[name] = np.empty(size, np.uint8)
        return self._row_buffers[name][:size]


class _Place:
    def __init__(self, start: int, row: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._start, self._row, self._dtype = start, row, dtype
        self.row_bytes = int(np.prod(row, dtype=np.int64)) * dtype.itemsize

    def of(self, memory: Array, count: int) -> Array:
        part = memory[self._start : self._start + count * self.row_bytes]
        return part.view(self._dtype).reshape(count, *self._row)


def _rows(like: Any, values: Any, numbers: Any) -> Any:
    """Return the gradient of an embedding, with any number of look-ups."""
    values = _shaped(values, [None, *like.values.shape[1:]])
    return tf.IndexedSlices(values, tf.cast(_shaped(numbers, [None]), like.indices.dtype), like.dense_shape)


def _shaped(tensor: Any, shape: Any) -> Any:
    tensor.set_shape(shape)
    return tensor
