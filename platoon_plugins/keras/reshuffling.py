"""New division of the rows of `shard` in each epoch of a fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.sharding import shard_seed
from platoon_base.worker import warn_once
from platoon_plugins.keras import seeds
from platoon_plugins.keras.parts import Cut, Part, leaves, map_arrays, part_at, part_of
from platoon_plugins.keras.row_batches import RowBatches, Rows, RowsOfArray

__all__ = ["Reshuffling", "callers", "common_cut"]


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
