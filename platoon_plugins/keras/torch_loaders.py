"""A worker's part of a torch DataLoader, which Keras 3 can read on every back end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import epoch_indices
from platoon_plugins.keras import seeds
from platoon_plugins.keras.parts import too_few
from platoon_plugins.keras.read_order import REMEDY, ReadOrder, register

# The rounds of row numbers that are drawn in one call.
_ROUNDS_AHEAD = 32

_COPIED = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def is_loader(data: Any) -> bool:
    """Return whether data are a torch.utils.data.DataLoader, without importing torch."""
    return any(cls.__name__ == "DataLoader" and "torch.utils.data" in cls.__module__ for cls in type(data).__mro__)


def shard_loader(loader: Any, worker: Worker) -> Any:
    """Return a DataLoader of every N-th row of another one, or of every N-th batch."""
    # It takes every N-th batch of other samplers and of an IterableDataset. A DataLoader with a
    # DistributedSampler for this rank is returned unchanged.
    from torch.utils.data import DataLoader, IterableDataset

    from platoon_base.torch_loops import is_divided

    size = worker.global_size
    options = {name: getattr(loader, name) for name in _COPIED if hasattr(loader, name)}
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(_iterable(loader, worker), batch_size=None)
    if is_divided(loader, worker):
        return loader
    if not draws_from_all(loader):
        inner = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if hasattr(inner, "__len__") and len(inner) < size:
            raise ConfigurationError(f"got {len(inner)} batches for {size} workers, so some would have none")
        dealt = _Dealt(inner, _named(loader), worker)
        kind = {"batch_size": None, "sampler": dealt} if loader.batch_sampler is None else {"batch_sampler": dealt}
        return DataLoader(loader.dataset, **kind, **options)
    batches, shuffles = loader.batch_sampler, type(_sampler(loader)).__name__ == "RandomSampler"
    if len(loader.dataset) < size:
        raise too_few(f"{len(loader.dataset)} rows", len(loader.dataset), size)
    share = _Share(len(loader.dataset), shuffles, worker)
    batch = (
        {"batch_size": None} if batches is None else {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    )
    return DataLoader(loader.dataset, sampler=share, **batch, **options)


def _sampler(loader: Any) -> Any:
    """Return the sampler of rows; beside a batch_sampler, ``loader.sampler`` is not used."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _named(loader: Any) -> str:
    from torch.utils.data import IterableDataset

    own = loader.dataset if isinstance(loader.dataset, IterableDataset) else _sampler(loader)
    if type(own).__name__ == "SequentialSampler":
        own = loader.batch_sampler
    return f"the DataLoader with {type(own).__name__}"


def draws_from_all(loader: Any) -> bool:
    """Return whether a DataLoader reads each row of a data set once, in order or shuffled."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

    sampler = _sampler(loader)
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    return (
        not isinstance(loader.dataset, IterableDataset)
        and (shuffles or type(sampler) is SequentialSampler)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
    )


def is_share(loader: Any) -> bool:
    return (
        isinstance(loader.sampler, (_Share, _Dealt))
        or isinstance(loader.batch_sampler, _Dealt)
        or (hasattr(loader.dataset, "dealt_by"))
    )


def set_sampler_epoch(data: Any, epoch: int) -> None:
    """Set the epoch of a DataLoader's sampler, as for torch's DistributedSampler."""
    for sampler in (data.sampler, data.batch_sampler) if is_loader(data) else ():
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)


class _Share:
    """A sampler of this worker's row numbers, in an order common to all workers."""

    def __init__(self, rows: int, shuffles: bool, worker: Worker) -> None:
        self._rows, self._shuffles = rows, shuffles
        self._rank, self._size, self._seed = worker.global_rank, worker.global_size, worker.seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next permutation; by default it follows the last one read."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(range(self._rank, self._rows, self._size))

    def __iter__(self) -> Iterator[int]:
        rows = epoch_indices(
            self._rows, self._rank, self._size, shuffle=self._shuffles, seed=self._seed, epoch=self._epoch
        )
        self._epoch += 1
        return iter(rows.tolist())


class _Dealt:
    """Every N-th batch of row numbers of a sampler; all workers iterate over it alike."""

    def __init__(self, inner: Any, what: str, worker: Worker) -> None:
        self._inner, self._rank, self._size = inner, worker.global_rank, worker.global_size
        self._order = ReadOrder(f"the rows that {what} draws", REMEDY, self._size)
        self._seed = [worker.seed, register(self._order, worker)]
        self._common = seeds.Common(self._seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a loader process, which draws no rows."""
        return {name: value for name, value in vars(self).items() if name not in ("_order", "_common")}

    def set_epoch(self, epoch: int) -> None:
        self._common = seeds.Common([*self._seed, epoch])
        for sampler in self._inner, getattr(self._inner, "sampler", None):
            set_sampler = getattr(sampler, "set_epoch", None)
            if callable(set_sampler):
                set_sampler(epoch)

    def __len__(self) -> int:
        return len(range(self._rank, len(self._inner), self._size))

    def __iter__(self) -> Iterator[Any]:
        self._order.begin()
        for ahead in self._common.drawn(lambda: self._inner, self._size * _ROUNDS_AHEAD):
            for batch in ahead:
                self._order.add(np.asarray(batch))
            yield from ahead[self._rank :: self._size]


def _iterable(loader: Any, worker: Worker) -> Any:
    from torch.utils.data import IterableDataset

    order = ReadOrder(_named(loader), REMEDY, worker.global_size)
    common = seeds.Common([worker.seed, register(order, worker)])

    class EveryNth(IterableDataset):
        dealt_by = order

        def __iter__(self) -> Iterator[Any]:
            order.begin()
            with common:
                batches = iter(loader)
            yield from every_nth(batches, order, common, worker)

    return EveryNth()


def every_nth(batches: Iterator[Any], order: ReadOrder, common: seeds.Common, worker: Worker) -> Iterator[Any]:
    """Yield this worker's batches of those that all workers read with common generators."""
    # All workers read whole rounds of N batches, and so stop at the same batch.
    while True:
        own, last = [], -1
        with common:
            for last, batch in enumerate(itertools.islice(batches, worker.global_size)):
                order.add(batch)
                if last == worker.global_rank:
                    own.append(batch)
        yield from own
        if last + 1 < worker.global_size:
            return
