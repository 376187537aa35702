"""Divide the rows of `shard` again: in each epoch of a fit, and when workers are lost."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.sharding import shard_seed
from platoon_base.worker import warn_once
from platoon_plugins.keras import seeds
from platoon_plugins.keras.backends.aligned import ALIGNMENT_BYTES, AlignedArrays, writable
from platoon_plugins.keras.marks import arguments_of_fit, callers
from platoon_plugins.keras.parts import NAMES, Cut, Part, leaves, map_arrays, part_at, part_of, rows_at

log = logging.getLogger(__name__)
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Reshuffling:
    """Divides the rows of one fit again in each epoch; make it in ``on_train_begin``."""

    # Worker r takes every N-th row, from r on, of one permutation, drawn from the seed of the job,
    # the number of the fit and the epoch. If one of the arrays of `fit` is not from `shard`, all
    # keep their rows: otherwise rows of different arrays would no longer belong together.

    def __init__(self, worker: Worker, model: Any) -> None:
        self._worker = worker
        self._inputs: _Keras3Inputs | _Keras2Inputs | None = None
        self._cut: Cut | None = None
        self._why_not = ""
        self._seed = 0
        inputs = _inputs_of_fit(model)
        if inputs is not None:
            self._cut, self._why_not = common_cut(inputs.parts())
            self._inputs = None if self._cut is None else inputs

    def agree(self) -> None:
        """Check whether all workers can divide their rows again; a collective call."""
        mine = "" if self._cut is None else f"{self._cut.start} {self._cut.stop} {self._cut.uneven}"
        told = self._worker.gather([self._worker.global_rank, seeds.fits(), mine], name="keras fit rows")
        leader, number, _ = told[0]
        if len({cut for *_, cut in told}) > 1:
            self._why_not = self._why_not or "another worker cannot"
            self._inputs = None
        if self._why_not and self._worker.global_rank == leader:
            warn_once(
                f"every worker keeps its rows in all epochs of this fit: {self._why_not}; prepare "
                "arrays before shard, and pass its results to fit, or pass shard(..., "
                "reshuffle=False)"
            )
        self._seed = shard_seed(self._worker.seed, number) if number else self._worker.seed

    def epoch_begins(self, epoch: int) -> None:
        """Replace the rows of ``fit`` by those of this epoch, before it reads the first batch."""
        if self._inputs is None or self._cut is None:
            return
        self._inputs.replace(self._cut.rows(self._seed, epoch))

    def end(self) -> None:
        if self._inputs is not None:
            self._inputs.close()
        self._inputs = None


def common_cut(arrays: list[tuple[Any, Part | None]]) -> tuple[Cut | None, str]:
    """Return the common cut of all arrays; or None, and a reason if some are from `shard`."""
    parts = [part for _, part in arrays if part is not None]
    if not parts:
        return None, ""
    if len(parts) < len(arrays):
        return None, "fit was given arrays of shard together with an array that is not of shard"
    if len({part.cut for part in parts}) > 1:
        return None, "fit was given arrays that shard has divided differently"
    if not all(part.is_unchanged(array) for array, part in arrays if part is not None):
        return None, "an array was changed after shard"
    return parts[0].cut, ""


def _inputs_of_fit(model: Any) -> _Keras3Inputs | _Keras2Inputs | None:
    """Return the arrays of the calling ``fit``; None if it does not shuffle all rows."""
    for name, values in callers():
        if name == "fit_loop" and values.get("model") is model and "fit_inputs" in values:
            kind: Any = _Keras2Inputs
            steps = values.get("steps_per_epoch")
        elif name == "fit" and values.get("self") is model and "epoch_iterator" in values:
            kind = _Keras3Inputs
            steps = values["epoch_iterator"].steps_per_epoch
        else:
            continue
        shuffles = values.get("shuffle")
        return kind(values) if shuffles and not isinstance(shuffles, str) and not steps else None
    return None


class _Keras3Inputs:
    """Inputs of Keras 3, whose adapter draws the order and converts the rows of each batch."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._iterator = values["epoch_iterator"]
        self._data = tuple(values.get(name) for name in NAMES)
        self._class_weight = values.get("class_weight")
        self._whole: Any = None
        self._tensors: Any = None
        self._ahead: list[Generator[Any, None, None]] = []

    def parts(self) -> list[tuple[Any, Part | None]]:
        return [(array, part_of(array)) for array in leaves(self._data)]

    def replace(self, rows: Rows) -> None:
        adapter = self._iterator.data_adapter
        kind, batch_size = type(adapter), adapter.batch_size
        if self._whole is None:
            x, y, sample_weight = map_arrays(self._data, lambda array: _on_memory_of(part_of(array).whole))  # type: ignore[union-attr]
            # Keras makes sample weights from the class weights, here for the rows of all workers.
            whole = kind(x, y, sample_weight=sample_weight, class_weight=self._class_weight)
            self._whole = keras.utils.unpack_x_y_sample_weight(whole._inputs)
        x, y, sample_weight = map_arrays(self._whole, lambda array: _RowsOfArray.of(array, rows))
        adapter = kind(x, y, sample_weight=sample_weight, batch_size=batch_size, shuffle=True)
        if keras.backend.backend() == "tensorflow":
            # Keras would make a tensor of the rows, which copies them.
            order = kind(rows, batch_size=batch_size, shuffle=True)
            adapter.get_tf_dataset = lambda: self._dataset(order)
        if keras.backend.backend() == "jax" and is_on_device():
            adapter.get_jax_iterator = partial(_one_ahead, kind.get_jax_iterator, adapter, self._ahead)
        _read_from(self._iterator, adapter)

    def close(self) -> None:
        """End the thread that reads ahead, which a fit that stops within an epoch leaves waiting."""
        while self._ahead:
            self._ahead.pop().close()

    def _dataset(self, order: Any) -> Any:
        """Return the data set of the batches whose row numbers an adapter draws."""
        import tensorflow as tf

        if self._tensors is None:
            packed = keras.utils.pack_x_y_sample_weight(*self._whole)
            self._tensors = keras.tree.lists_to_tuples(map_arrays(packed, _tensor))

        def row_of_each(tensor: Any, rows: Any) -> Any:
            taken = tf.gather(tensor, rows)
            return tf.cast(taken, keras.config.floatx()) if taken.dtype.is_floating else taken

        def batch(rows: Any) -> Any:
            return map_arrays(self._tensors, lambda tensor: row_of_each(tensor, rows))

        parallel = tf.data.AUTOTUNE
        return order.get_tf_dataset().map(batch, num_parallel_calls=parallel).prefetch(parallel)


def is_on_device() -> bool:
    """Return whether JAX computes on devices, which leave the processor time to read ahead."""
    import jax

    return bool(jax.default_backend() != "cpu")


def _one_ahead(read: Any, adapter: Any, opened: list[Generator[Any, None, None]]) -> Generator[Any, None, None]:
    """Return the batches of an adapter, each read by a thread while the one before is used."""
    opened[:] = [_read_ahead(read(adapter))]
    return opened[0]


def _read_ahead(batches: Iterator[Any]) -> Generator[Any, None, None]:
    # The first is read while the caller waits, so an order is drawn where it always was.
    with ThreadPoolExecutor(1, "platoon-rows") as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


class _Keras2Inputs:
    """Inputs of Keras 2: a list of inputs, targets and sample weights (1.0 by default)."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._list: list[Any] = values["fit_inputs"]
        self._found = {
            i: part_at(array)
            for i, array in enumerate(self._list)
            if hasattr(array, "shape") and not _is_all_ones(array)
        }

    def parts(self) -> list[tuple[Any, Part | None]]:
        return [(self._list[i], None) if found is None else found for i, found in self._found.items()]

    def replace(self, rows: Rows) -> None:
        for i, (_, part) in [(i, found) for i, found in self._found.items() if found is not None]:
            # Keras has added an axis to vectors.
            whole = part.whole.reshape(len(part.whole), *self._list[i].shape[1:])
            self._list[i] = _RowsOfArray.of(whole, rows)

    def close(self) -> None:
        """Do nothing: no thread reads ahead."""


def _is_all_ones(array: Any) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not (array[:1] == 1).all():
        return False
    return bool(array.min() == 1 == array.max())  # A comparison would need memory for its result.


class _RowsOfArray(np.ndarray):  # type: ignore[type-arg]
    """Selected rows of an array. Reading takes and casts them, so the array is not copied."""

    _rows: Rows
    _dtype: Any = None

    @classmethod
    def of(cls, array: Any, rows: Rows, dtype: Any = None) -> _RowsOfArray:
        made: _RowsOfArray = array.view(cls)
        made._rows, made._dtype = rows, dtype
        return made

    @property  # type: ignore[misc]
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self.view(np.ndarray).shape[1:])

    def astype(self, dtype: Any) -> _RowsOfArray:  # type: ignore[override]
        return self.of(self, self._rows, dtype)

    def __getitem__(self, places: Any) -> Any:
        taken = self.view(np.ndarray)[self._rows[places]]
        return taken if self._dtype is None else taken.astype(self._dtype)


def _on_memory_of(array: Any) -> Any:
    """Return a NumPy array on the memory of an array, if that is possible."""
    values = np.asarray(array.detach() if hasattr(array, "detach") else array)
    # Keras gives a Series an axis.
    return values[:, None] if hasattr(array, "iloc") and values.ndim == 1 else values


def _tensor(values: Any) -> Any:
    """Return a tensor of TensorFlow on the memory of an array, or on one aligned copy of it."""
    import tensorflow as tf

    # TensorFlow would copy other arrays twice.
    if values.dtype.kind not in "iuf" or not values.size:
        return tf.convert_to_tensor(values)
    if not values.flags.c_contiguous or values.ctypes.data % ALIGNMENT_BYTES:
        aligned = AlignedArrays().empty(values.shape, values.dtype)
        np.copyto(aligned, values)
        values = aligned
    return tf.experimental.dlpack.from_dlpack(writable(values).__dlpack__())


def _read_from(iterator: Any, adapter: Any) -> None:
    """Make Keras 3 read batches from another adapter, on TensorFlow from its data set."""
    iterator.data_adapter, iterator._current_iterator = adapter, None
    iterator._num_batches = adapter.num_batches
    if hasattr(iterator, "_distributed_dataset"):
        iterator._distributed_dataset = None  # This frees the tensors that Keras has made.
        iterator._distributed_dataset = iterator._distribute_strategy.experimental_distribute_dataset(
            adapter.get_tf_dataset()
        )


class LostRows:
    """Divides the validation rows of a fit again when a worker is lost."""

    def __init__(self, worker: Worker, model: Any) -> None:
        self._worker, self._model = worker, model
        self._dealt_to: tuple[int, ...] = tuple(range(worker.global_size))
        self._taken_over = False
        self._said = False

    def before_validation(self, epoch: int, ranks: Sequence[int]) -> None:
        """Divide the validation rows among ``ranks``; a collective call if these have changed."""
        if self._dealt_to == tuple(ranks):
            return
        self._dealt_to = tuple(ranks)
        found = _validation_of(self._model)
        can = found is not None
        self._taken_over = all(self._worker.gather(can, name=f"keras lost rows {epoch}"))
        if found is not None and self._taken_over:
            iterator, data = found
            _replace(iterator, data, ranks.index(self._worker.global_rank), len(ranks))

    def report(self, epoch: int, ranks: Sequence[int], validated: Sequence[int], evaluates: bool) -> None:
        """Report on the leader if the training or validation of an epoch lacks rows."""
        size = self._worker.global_size
        if len(ranks) == len(validated) == size:
            return
        # A worker was lost during the validation.
        cut_short = len(validated) < len(ranks)
        whole = self._taken_over and not cut_short
        parts = f"{len(ranks)} of {size} trained"
        if evaluates:
            parts += f", {'all' if whole else f'{len(validated)} of {size}'} validated"
        self._worker.report({"parts of the data": parts})
        if self._said and not cut_short:
            return
        self._said = self._said or not cut_short
        gone = sorted(set(range(size)).difference(validated))
        log.warning(
            "ranks %s are lost: from epoch %d on, training values do not include their rows%s",
            gone,
            epoch + 1,
            ""
            if not evaluates
            else "; the other ranks validate on all rows"
            if whole
            else (
                ", nor do validation values, so these are not comparable with earlier ones, "
                "although EarlyStopping and ModelCheckpoint(save_best_only=True) compare them"
            ),
        )


def _validation_of(model: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the validation iterator and arrays of the calling ``fit``; None if not of `shard`."""
    iterator, values = getattr(model, "_eval_epoch_iterator", None), arguments_of_fit(model)
    if iterator is None or iterator.steps_per_epoch or not hasattr(iterator.data_adapter, "batch_size"):
        return None
    data = tuple(values.get(each) for each in ("val_x", "val_y", "val_sample_weight"))
    cut, _ = common_cut([(array, part_of(array)) for array in leaves(data)])
    return None if cut is None or cut.uneven != "keep" else (iterator, data)


def _replace(iterator: Any, data: tuple[Any, ...], index: int, count: int) -> None:
    """Make Keras 3 validate every ``count``-th row of the whole arrays, from ``index`` on."""

    def rows_of(array: Any) -> Any:
        part: Part = part_of(array)  # type: ignore[assignment]
        return rows_at(part.whole, slice(part.cut.start + index, part.cut.stop, count))

    adapter = iterator.data_adapter
    x, y, sample_weight = map_arrays(data, rows_of)
    _read_from(iterator, type(adapter)(x, y, sample_weight=sample_weight, batch_size=adapter.batch_size))
