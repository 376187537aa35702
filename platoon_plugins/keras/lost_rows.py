"""Rows of lost workers: the others validate them if possible, or report that they are missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from platoon_base import Worker
from platoon_plugins.keras.parts import Part, leaves, map_arrays, part_of
from platoon_plugins.keras.reshuffling import callers, common_cut

__all__ = ["LostRows"]

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
