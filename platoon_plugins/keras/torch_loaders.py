"""A worker's part of a torch DataLoader, which Keras 3 can read on every back end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.sharding import epoch_indices

__all__ = ["draws_from_all", "is_loader", "is_share", "set_sampler_epoch", "shard_loader"]

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
    """Return a DataLoader of every N-th item, in the order of another DataLoader; see `platoon_plugins.keras.shard`.

    If that one shuffles, the order is a new permutation in each epoch, the same on all workers.

    Raises
    ------
    ConfigurationError
        If the order is not that of the data set or a permutation of it.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if not draws_from_all(loader):
        of_its_own = [loader.dataset] if isinstance(loader.dataset, IterableDataset) else [loader.sampler]
        names = ", ".join(type(part).__name__ for part in (*of_its_own, loader.batch_sampler) if part is not None)
        raise ConfigurationError(
            f"got a DataLoader with {names}, whose order cannot be divided among workers from outside: let it yield "
            "this worker's items by itself (connect().global_rank of connect().global_size), and pass it to fit as it "
            "is; or make the DataLoader of a data set with a length, by shuffle=True or False"
        )
    batches, shuffles = loader.batch_sampler, type(loader.sampler).__name__ == "RandomSampler"
    if len(loader.dataset) < worker.global_size:
        raise ConfigurationError(
            f"got {len(loader.dataset)} rows for {worker.global_size} workers: some would have none; use fewer workers"
        )
    options = {name: getattr(loader, name) for name in _COPIED if hasattr(loader, name)}
    share = _Share(len(loader.dataset), shuffles, worker)
    batch = (
        {"batch_size": None} if batches is None else {"batch_size": loader.batch_size, "drop_last": batches.drop_last}
    )
    return DataLoader(loader.dataset, sampler=share, **batch, **options)


def draws_from_all(loader: Any) -> bool:
    """Return whether a DataLoader reads each row of a data set with a length once, in order or shuffled."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    return (
        not isinstance(loader.dataset, IterableDataset)
        and (shuffles or type(sampler) is SequentialSampler)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
    )


def is_share(loader: Any) -> bool:
    """Return whether a DataLoader is one that `shard_loader` has returned."""
    return isinstance(loader.sampler, _Share)


def set_sampler_epoch(data: Any, epoch: int) -> None:
    """Set the epoch of a DataLoader's sampler, as torch's DistributedSampler requires too."""
    for sampler in (data.sampler, data.batch_sampler) if is_loader(data) else ():
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)


class _Share:
    """A sampler of this worker's row numbers, in an order that all workers have in common."""

    def __init__(self, rows: int, shuffles: bool, worker: Worker) -> None:
        self._rows, self._shuffles = rows, shuffles
        self._rank, self._size, self._seed = worker.global_rank, worker.global_size, worker.seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next permutation; the default is the epoch after the last one read."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(range(self._rank, self._rows, self._size))

    def __iter__(self) -> Iterator[int]:
        rows = epoch_indices(
            self._rows, self._rank, self._size, shuffle=self._shuffles, seed=self._seed, epoch=self._epoch
        )
        self._epoch += 1
        return iter(rows.tolist())
