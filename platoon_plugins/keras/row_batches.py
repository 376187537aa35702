"""Batches of rows by their numbers, so that no array of a worker's rows is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from platoon_base.sharding import take
from platoon_plugins.keras.backends.aligned import ALIGNMENT_BYTES, AlignedArrays, writable
from platoon_plugins.keras.parts import map_arrays

__all__ = ["RowBatches", "Rows", "RowsOfArray"]

Rows = np.ndarray[Any, np.dtype[np.int64]]


class RowsOfArray:
    """Rows of an array by their numbers, in a given shape, for the loops of Keras 2."""

    def __init__(self, array: Any, rows: Rows, shape: tuple[int, ...]) -> None:
        self._array, self._rows = array, rows
        self.shape = (len(rows), *shape[1:])

    def __getitem__(self, places: Any) -> Any:
        rows = self._rows[places]
        return take(self._array, rows).reshape(len(rows), *self.shape[1:])


class RowBatches:
    """Takes the place of Keras 3's adapter of arrays, whose order and conversions it uses.

    Keras's own adapter draws the order of the row numbers, with the random numbers that it would
    draw for the rows. Another one, of all rows, converts them.
    """

    def __init__(self, kind: Callable[..., Any], data: tuple[Any, ...], batch_size: int, class_weight: Any) -> None:
        self._kind, self._batch_size = kind, batch_size
        # JAX would gather rows on the device, and Keras copies each batch back.
        self._data = map_arrays(data, lambda array: np.asarray(array) if _is_of_jax(array) else array)
        self._class_weight = class_weight
        self._tensors: Any = None

    @functools.cached_property
    def _whole(self) -> Any:
        x, y, sample_weight = self._data
        return self._kind(x, y, sample_weight=sample_weight, class_weight=self._class_weight)

    def _are_taken_unchanged(self) -> bool:
        """Return whether no adapter is needed for each batch, which takes longer than its rows."""
        return all(map(_is_taken_unchanged, keras.tree.flatten(self._whole._inputs)))

    def take(self, rows: Rows) -> None:
        """Read these rows from now on."""
        self._rows = rows
        self._order = self._kind(rows, batch_size=self._batch_size, shuffle=True)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute such as ``num_batches`` of the adapter of the row numbers."""
        if name in ("_order", "_whole"):
            raise AttributeError(name)
        return getattr(self._order, name)

    def batch(self, rows: Rows) -> Any:
        """Return an adapter of one batch."""
        x, y, sample_weight = map_arrays(self._data, lambda array: take(array, rows))
        return self._kind(
            x, y, sample_weight=sample_weight, class_weight=self._class_weight, batch_size=max(1, len(rows))
        )

    def get_numpy_iterator(self) -> Iterator[Any]:
        for rows in self._order.get_numpy_iterator():
            yield next(self.batch(rows).get_numpy_iterator())

    def get_jax_iterator(self) -> Iterator[Any]:
        unchanged = self._are_taken_unchanged()
        for rows in self._order.get_numpy_iterator():
            if unchanged:
                yield map_arrays(self._whole._inputs, lambda array, rows=rows: array[rows])
            else:
                yield next(self.batch(rows).get_jax_iterator())

    def get_torch_dataloader(self) -> Any:
        import torch

        loader = self._order.get_torch_dataloader()
        whole = self._whole.get_torch_dataloader().dataset if self._are_taken_unchanged() else None
        items: Any = _TorchItems(self, whole, self._rows)
        return torch.utils.data.DataLoader(items, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        if self._tensors is None:
            self._tensors = keras.tree.lists_to_tuples(map_arrays(self._whole._inputs, _tensor))

        def batch(rows: Any) -> Any:
            return map_arrays(self._tensors, lambda tensor: _as_keras_floats(tf.gather(tensor, rows)))

        parallel = tf.data.AUTOTUNE
        return self._order.get_tf_dataset().map(batch, num_parallel_calls=parallel).prefetch(parallel)


class _TorchItems:
    def __init__(self, batches: RowBatches, whole: Any, rows: Rows) -> None:
        self._batches, self._whole, self._rows = batches, whole, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitems__(self, places: list[int]) -> Any:
        rows = self._rows[places]
        if self._whole is not None:
            return self._whole.__getitems__(rows)
        return self._batches.batch(rows).get_torch_dataloader().dataset.__getitems__(slice(None))


def _is_taken_unchanged(array: Any) -> bool:
    """Return whether Keras passes the rows of an array as they are; it casts other arrays as a whole."""
    if keras.backend.backend() == "torch" and type(array).__module__ == "torch":
        return not array.is_floating_point() or str(array.dtype) == f"torch.{keras.config.floatx()}"
    return isinstance(array, np.ndarray) and (array.dtype.kind in "iub" or array.dtype == keras.config.floatx())


def _is_of_jax(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _tensor(array: Any) -> Any:
    """Return a tensor of TensorFlow on the memory of an array, or on one aligned copy of it."""
    import tensorflow as tf

    values = np.asarray(array.detach() if hasattr(array, "detach") else array)
    if hasattr(array, "iloc") and values.ndim == 1:  # Keras gives a Series an axis.
        values = values[:, None]
    # TensorFlow would copy other arrays twice.
    if values.dtype.kind not in "iuf" or not values.size:
        return tf.convert_to_tensor(values)
    if not values.flags.c_contiguous or values.ctypes.data % ALIGNMENT_BYTES:
        aligned = AlignedArrays().empty(values.shape, values.dtype)
        np.copyto(aligned, values)
        values = aligned
    return tf.experimental.dlpack.from_dlpack(writable(values).__dlpack__())


def _as_keras_floats(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor
