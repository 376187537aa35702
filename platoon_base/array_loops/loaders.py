"""A worker's part of the batches of a loop of NumPy or JAX."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.array_loops.loops import current, settle
from platoon_base.array_loops.trees import tree_of
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.job import connect
from platoon_base.seeds import Common
from platoon_base.sharding import Cut, deal
from platoon_base.worker import SAME_DATA_REMEDY, Worker, passes_before


def _rows_of(batch: Any) -> int:
    """Return the number of rows of a batch, by its first array; 1 if there is none."""
    return next((int(leaf.shape[0]) for leaf in tree_of(batch).leaves if len(getattr(leaf, "shape", ()))), 1)


def _join(found: Sequence[Any]) -> Any:
    """Concatenate batches of arrays; None if a leaf is no array with rows."""
    trees = [tree_of(batch() if isinstance(batch, functools.partial) else batch) for batch in found]
    leaves = [leaf for tree in trees for leaf in tree.leaves]
    if not leaves or not all(len(getattr(leaf, "shape", ())) for leaf in leaves):
        return None
    if any(tree.names != trees[0].names for tree in trees):
        return None
    return trees[0].rebuild(
        [np.concatenate([np.asarray(leaf) for leaf in each]) for each in zip(*(t.leaves for t in trees))]
    )


def _take(batch: Any, start: int, stop: int) -> Any:
    tree = tree_of(batch)
    return tree.rebuild([leaf[start:stop] for leaf in tree.leaves])


_ARRAYS = Cut(_join, lambda batch: 0 if batch is None else _rows_of(batch), _take)


class Dealt:
    """The batches of a loader that this worker gets; each pass begins an epoch."""

    def __init__(self, loader: Any, worker: Worker, number: int) -> None:
        self._loader, self._worker, self._number = loader, worker, number
        self._passes = passes_before(worker)
        self._checked = worker.global_size == 1

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_loader"], name)

    def __len__(self) -> int:
        workers = self._worker.global_size
        full, left = divmod(len(self._loader), workers)
        # Fewer rows than workers are divided together with the round before.
        few = isinstance(self._loader, _Rows) and self._loader.after(full * workers) < workers
        return full + (left > 0 and not (few and full))

    def __iter__(self) -> Iterator[Any]:
        worker, loop = self._worker, current()
        one = None if loop is None else loop.pass_begins(_length(self))
        kind = self._loader.kind if isinstance(self._loader, _Rows) else self._number
        mine = deal(self._drawn(), worker.global_rank, worker.global_size, _ARRAYS)
        try:
            for batch in worker.loading(each() if isinstance(each, functools.partial) else each for each in mine):
                if loop is not None and one is not None:
                    loop.draws(one, _rows_of(batch), kind)
                yield batch
            settle()
        finally:
            if loop is not None and one is not None:
                loop.pass_ends(one)

    def _drawn(self) -> Iterator[Any]:
        """Yield all batches, drawn from generators that all workers share, or how to read each."""
        self._passes += 1
        common = Common([self._worker.seed, self._number, self._passes])
        for found in common.drawn(lambda: _lazily(self._loader) if _is_indexed(self._loader) else self._loader, 1):
            for batch in found:
                if not self._checked:
                    self._checked = True
                    first = batch() if isinstance(batch, functools.partial) else batch
                    mark = fingerprint(*(np.asarray(leaf) for leaf in tree_of(first).leaves))
                    name = f"the batches of loader {self._number}"
                    self._worker.advanced.require_same(name, mark, SAME_DATA_REMEDY)
                yield batch


def _is_indexed(loader: Any) -> bool:
    return hasattr(loader, "__getitem__") and hasattr(loader, "__len__")


def _lazily(loader: Any) -> Iterator[Callable[[], Any]]:
    for i in range(len(loader)):
        yield functools.partial(loader.__getitem__, i)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, AttributeError):
        return None


def is_loader(each: Any) -> bool:
    """Return whether an object yields batches, and is no nested array."""
    if hasattr(each, "dtype") or isinstance(each, (dict, list, tuple, str)):
        return False
    leaves = tree_of(each).leaves
    return len(leaves) == 1 and leaves[0] is each and (hasattr(each, "__iter__") or _is_indexed(each))


class _Rows:
    """Row numbers in batches, in a new order in each pass."""

    def __init__(self, rows: int, size: int, shuffle: bool, seeds: Sequence[int], passes: int) -> None:
        self.kind = self._rows, self._size = rows, size
        self._shuffle, self._seeds, self._passes = shuffle, seeds, passes

    def __len__(self) -> int:
        return -(-self._rows // self._size)

    def after(self, batches: int) -> int:
        """Return the number of rows after so many batches."""
        return self._rows - batches * self._size

    def __iter__(self) -> Iterator[Any]:
        order = np.arange(self._rows)
        if self._shuffle:
            np.random.default_rng([*self._seeds, self._passes]).shuffle(order)
        self._passes += 1
        for start in range(0, self._rows, self._size):
            yield order[start : start + self._size]


def batches(rows: int, size: int, *, shuffle: bool = True, seed: int | None = None) -> Any:
    """Return the row numbers of this worker in batches, as a loader: ``for row in loader: x[row]``.

    Each pass deals all rows out, in a new order, without repeats and in equally many batches on all
    workers. N workers with ``size`` rows train as one process with N ``size``.

    Parameters
    ----------
    rows : int
        The number of rows of the data, the same on all workers.
    size : int
        The number of rows of a batch of one worker.
    shuffle : bool
    seed : int, optional
        Of the order. The default is the job's seed, with another order for each loader.
    """
    if not all(isinstance(n, (int, np.integer)) and n > 0 for n in (rows, size)):
        raise ConfigurationError(f"got batches({rows!r}, {size!r}): pass the number of rows, and of those of a batch")
    worker, number = connect(), next(numbers)
    seeds = [worker.seed, number] if seed is None else [seed]
    return Dealt(_Rows(int(rows), int(size), shuffle, seeds, passes_before(worker)), worker, number)


numbers = itertools.count(1)  # Of the loaders of all trainings.
