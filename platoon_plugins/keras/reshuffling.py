"""Another division of the rows of `shard`: in each epoch of a fit, and when workers are lost."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.sharding import shard_seed, take
from platoon_base.worker import warn_once
from platoon_plugins.keras import seeds
from platoon_plugins.keras.backends.aligned import ALIGNMENT_BYTES, AlignedArrays, writable
from platoon_plugins.keras.parts import Cut, Part, leaves, map_arrays, part_at, part_of

__all__ = ["LostRows", "Reshuffling", "Rows"]


class Reshuffling:
    """Divides the rows of one fit again in each epoch; make it in ``on_train_begin``."""

    # Worker r takes every N-th row, from r on, of one permutation, drawn from the seed of the job,
    # the number of the fit and the epoch. If `fit` gets arrays other than those of `shard`, its
    # rows stay, as they would no longer be aligned.

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
                f"every worker keeps its rows in all epochs of this fit: {self._why_not}; prepare arrays before shard, "
                "and pass what it returns to fit, or say shard(..., reshuffle=False)"
            )
        self._seed = shard_seed(self._worker.seed, number) if number else self._worker.seed

    def epoch_begins(self, epoch: int) -> None:
        """Replace the rows of ``fit`` by those of this epoch, before it reads the first batch."""
        if self._inputs is None or self._cut is None:
            return
        self._inputs.replace(self._cut.rows(self._seed, epoch))

    def end(self) -> None:
        self._inputs = None


def common_cut(arrays: list[tuple[Any, Part | None]]) -> tuple[Cut | None, str]:
    """Return the common cut of all arrays; or None, and a reason if some are from `shard`."""
    parts = [part for _, part in arrays if part is not None]
    if not parts:
        return None, ""
    if len(parts) < len(arrays):
        return None, "fit was given arrays of shard together with one that shard has not returned"
    if len({part.cut for part in parts}) > 1:
        return None, "fit was given arrays that shard has cut in different ways"
    if not all(part.is_unchanged(array) for array, part in arrays if part is not None):
        return None, "an array has been changed since shard returned it"
    return parts[0].cut, ""


def _inputs_of_fit(model: Any) -> _Keras3Inputs | _Keras2Inputs | None:
    """Return the arrays of the calling ``fit``; None if it does not shuffle all rows."""
    for name, values in callers():
        if name == "fit_loop" and values.get("model") is model and "fit_inputs" in values:
            kind: Any = _Keras2Inputs
            shuffles, steps = values.get("shuffle"), values.get("steps_per_epoch")
        elif name == "fit" and values.get("self") is model and "epoch_iterator" in values:
            kind = _Keras3Inputs
            shuffles, steps = values.get("shuffle"), values["epoch_iterator"].steps_per_epoch
        else:
            continue
        return kind(values) if shuffles and not isinstance(shuffles, str) and not steps else None
    return None


def callers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and local variables of the functions on the call stack, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_name, frame.f_locals
        frame = frame.f_back


class _Keras3Inputs:
    """Inputs of Keras 3: replaces the adapter, and on TensorFlow the data set made from it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._iterator = values["epoch_iterator"]
        self._data = tuple(values.get(name) for name in ("x", "y", "sample_weight"))
        self._class_weight = values.get("class_weight")
        self._batches: RowBatches | None = None

    def parts(self) -> list[tuple[Any, Part | None]]:
        return [(array, part_of(array)) for array in leaves(self._data)]

    def replace(self, rows: Rows) -> None:
        iterator, adapter = self._iterator, self._iterator.data_adapter
        if self._batches is None:
            whole = map_arrays(self._data, lambda array: part_of(array).whole)  # type: ignore[union-attr]
            self._batches = RowBatches(type(adapter), whole, adapter.batch_size, self._class_weight)
        self._batches.take(rows)
        iterator.data_adapter, iterator._current_iterator = self._batches, None
        if hasattr(iterator, "_distributed_dataset"):
            iterator._distributed_dataset = None  # This frees the tensors that Keras has made.
            iterator._distributed_dataset = iterator._distribute_strategy.experimental_distribute_dataset(
                self._batches.get_tf_dataset()
            )


class _Keras2Inputs:
    """Inputs of Keras 2: a list of inputs, targets and sample weights, by default ones."""

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
            self._list[i] = RowsOfArray(part.whole, rows, self._list[i].shape)


def _is_all_ones(array: Any) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not (array[:1] == 1).all():
        return False
    return bool(array.min() == 1 == array.max())  # A comparison would need memory for its result.


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


log = logging.getLogger(__name__)


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
            "ranks %s are gone: from epoch %d on the values of training are without their rows%s",
            gone,
            epoch + 1,
            ""
            if not evaluates
            else "; the other ranks validate all rows"
            if whole
            else ", and so are those of validation: they compare with none from before, though EarlyStopping and "
            "ModelCheckpoint(save_best_only=True) do that",
        )


def _validation_of(model: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the validation iterator and arrays of the calling ``fit``; None if not of `shard`."""
    iterator = getattr(model, "_eval_epoch_iterator", None)
    if iterator is None or iterator.steps_per_epoch or not hasattr(iterator.data_adapter, "batch_size"):
        return None
    for name, values in callers():
        if name == "fit" and values.get("self") is model and "val_x" in values:
            data = tuple(values.get(each) for each in ("val_x", "val_y", "val_sample_weight"))
            cut, _ = common_cut([(array, part_of(array)) for array in leaves(data)])
            return None if cut is None or cut.uneven != "keep" else (iterator, data)
    return None


def _replace(iterator: Any, data: tuple[Any, ...], index: int, count: int) -> None:
    """Make Keras 3 validate every ``count``-th row of the whole arrays, from ``index`` on."""

    def rows_of(array: Any) -> Any:
        part: Part = part_of(array)  # type: ignore[assignment]
        rows = slice(part.cut.start + index, part.cut.stop, count)  # A slice makes a view.
        return part.whole.iloc[rows] if hasattr(part.whole, "iloc") else part.whole[rows]

    adapter = iterator.data_adapter
    x, y, sample_weight = map_arrays(data, rows_of)
    adapter = type(adapter)(x, y, sample_weight=sample_weight, batch_size=adapter.batch_size, shuffle=False)
    if hasattr(iterator, "_distributed_dataset"):
        iterator._distributed_dataset = iterator._distribute_strategy.experimental_distribute_dataset(
            adapter.get_tf_dataset()
        )
    iterator.data_adapter, iterator._current_iterator = adapter, None
    iterator._num_batches = adapter.num_batches
