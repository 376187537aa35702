"""A worker's part of a DataLoader: equally many batches on all workers, each row once."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DistributedSampler, IterableDataset, Subset

from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import checksum
from platoon_base.seeds import Common
from platoon_base.sharding import INDICES, Cut, deal
from platoon_base.worker import SAME_DATA_REMEDY, Worker, passes_before, warn_once

_ROUNDS_AHEAD = 32  # Changing generators takes longer than drawing row numbers.


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch, by its first tensor; 1 if there is none."""
    for leaf in _pytree.tree_leaves(batch):
        if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim:
            return len(leaf)
    return 1


def _join(batches: Sequence[Any]) -> Any:
    """Concatenate batches of tensors; None if a leaf is no tensor with rows."""
    flat = [_pytree.tree_flatten(batch) for batch in batches]
    leaves = [leaf for found, _ in flat for leaf in found]
    alike = all(spec == flat[0][1] for _, spec in flat)
    if not leaves or not alike or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in leaves):
        warn_once(
            "the last batches of a DataLoader are fewer than the workers and hold more than "
            "tensors, so they are left out"
        )
        return None
    return _pytree.tree_unflatten([torch.cat(parts) for parts in zip(*(found for found, _ in flat))], flat[0][1])


_TENSORS = Cut(
    _join,
    lambda batch: 0 if batch is None else rows_of(batch),
    lambda batch, start, stop: _pytree.tree_map(lambda leaf: leaf[start:stop], batch),
)


class _Dealt:
    """The batches of row numbers of a sampler that this worker gets; all workers draw all."""

    def __init__(self, part: Part, inner: Any) -> None:
        self._part, self._inner = part, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_inner"], name)  # Examples are set_epoch and batch_size.

    def __len__(self) -> int:
        sampler: Any = getattr(self._inner, "sampler", None)
        return self._part.length(len(self._inner), len(sampler) if hasattr(sampler, "__len__") else None)

    def __iter__(self) -> Iterator[Any]:
        part = self._part
        part.sizes.clear()
        for batch in deal(part.drawn(lambda: self._inner), *part.place, part.cut, part.drops, part.least):
            part.sizes.append(len(batch) if isinstance(batch, (list, tuple)) else 1)
            yield batch


class Part:
    """What one worker gets of a DataLoader, and how much of it there is."""

    def __init__(self, loader: Any, worker: Worker, number: int, least: int = 1) -> None:
        self._worker, self._number, self._checked = worker, number, False
        self.least = least  # Least number of rows of a batch.
        self.place = worker.global_rank, worker.global_size
        self.batch_size, self.drops = loader.batch_size, loader.drop_last
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self.cut: Cut | None = _TENSORS if self.iterable else None if loader.batch_sampler is None else INDICES
        self.divides = worker.global_size > 1 and not is_divided(loader, worker)
        self.count: int | None = None  # Number of batches of this worker.
        self.trains = False  # Whether a backward pass followed one of its batches.
        self.sizes: collections.deque[int] = collections.deque()
        self._dataset = loader.dataset
        self._passes = passes_before(worker)
        try:
            self.whole: int | None = len(loader)
        except TypeError:  # Of a dataset without length.
            self.whole = None

    def length(self, batches: int, rows: int | None) -> int:
        """Return the number of batches that each worker gets of so many."""
        _, size = self.place
        full, left = divmod(batches, size)
        if self.drops or self.cut is None or not left:
            return full
        # The last batch may be smaller than the others.
        few = rows is not None and self.batch_size and rows - full * size * self.batch_size < size * self.least
        return full + (not few or not full)

    def drawn(self, read: Callable[[], Any]) -> Iterator[Any]:
        """Yield all batches, drawn from generators that all workers share, and seed for each pass."""
        self._passes += 1
        common = Common([self._worker.seed, self._number, self._passes])
        for found in common.drawn(read, self.place[1] * (1 if self.iterable else _ROUNDS_AHEAD)):
            if not self._checked:
                self._require_same(found)
            yield from found

    def _require_same(self, found: list[Any]) -> None:
        self._checked = True
        if self.iterable:
            return
        rows, dataset = INDICES.join(found) if isinstance(found[0], list) else found, self._dataset
        while isinstance(dataset, Subset):
            rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
        mark = f"{len(self._dataset)} rows, {checksum(np.asarray(rows)):x}"
        self._worker.advanced.require_same(f"the rows of loader {self._number}", mark, SAME_DATA_REMEDY)

    def batches(self, read: Callable[[], Any]) -> Iterator[Any]:
        """Return the batches of this worker, given the function that reads the loader."""
        if not (self.divides and self.iterable):
            return iter(read())
        return deal(self.drawn(read), *self.place, self.cut, self.drops, self.least)

    def rows(self, batch: Any) -> int:
        return self.sizes.popleft() if self.sizes else rows_of(batch)


def divided(loader: Any, part: Part, around: Callable[[Part, Iterator[Any]], Iterator[Any]]) -> Any:
    """Return a copy of a DataLoader with this worker's part; ``around`` wraps each pass over it."""
    base: Any = type(loader)

    class Divided(base):  # type: ignore[misc]
        platoon_prepared = True

        def __iter__(self) -> Iterator[Any]:
            return around(part, part.batches(super().__iter__))

        def __len__(self) -> int:
            if part.divides and part.iterable and part.whole is not None:
                return part.length(part.whole, len(self.dataset))
            return int(super().__len__())

        def __copy__(self) -> Any:
            return divided(copy.copy(loader), part, around)

        def __deepcopy__(self, memo: Any) -> Any:
            return divided(copy.deepcopy(loader, memo), part, around)

        def __reduce_ex__(self, protocol: Any) -> Any:  # A pickle has no worker, so it is the given loader.
            return copy.copy, (loader,)

    made = copy.copy(loader)
    values = vars(made)  # DataLoader refuses to set these attributes.
    values["_iterator"] = None
    if part.divides and not part.iterable:
        kind = "sampler" if loader.batch_sampler is None else "batch_sampler"
        values[kind] = _Dealt(part, values[kind])
    Divided.__name__, Divided.__qualname__, Divided.__module__ = base.__name__, base.__qualname__, base.__module__
    made.__class__ = Divided
    return made


def is_divided(loader: Any, worker: Worker) -> bool:
    """Return whether a DistributedSampler divides a loader; raise if it does so for other ranks."""
    samplers = loader.sampler, getattr(loader.batch_sampler, "sampler", None), loader.batch_sampler
    for sampler in samplers:
        if isinstance(sampler, DistributedSampler):
            if (sampler.rank, sampler.num_replicas) != (worker.global_rank, worker.global_size):
                raise ConfigurationError(
                    f"got a DistributedSampler for rank {sampler.rank} of {sampler.num_replicas} in worker "
                    f"{worker.global_rank} of {worker.global_size}: leave the sampler out, or pass "
                    "rank=rank() and num_replicas=world_size()"
                )
            return True
    return False
