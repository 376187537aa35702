"""A stream that every worker reads completely, keeping every N-th batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from fuel.iterator import DataIterator
from fuel.streams import AbstractDataStream

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.job import connected
from platoon_plugins.blocks.above import StreamAbove
from platoon_plugins.blocks.schemes import CurrentShard, Shard

__all__ = ["DealtStream"]

log = logging.getLogger(__name__)

_REMEDY = (
    "Each worker reads the whole stream and keeps every N-th batch, so the streams must give the "
    "same batches in the same order. Seed shuffles and random numbers in it, for example with "
    "numpy.random.RandomState(0), and use the same files on all workers. If each worker should "
    "draw its own batches, leave shard_stream out"
)


class DealtStream(StreamAbove):
    """Divide the batches of a stream without row numbers, such as a text file, among the workers.

    Every worker reads all batches of an epoch (or examples); worker k of N keeps b_k, b_{k+N}, ...,
    with the ``uneven`` of a `ShardedScheme`. The workers compare their batches under ``name``,
    unless it is empty. A pickle, taken to be at the end of a round, continues with any number of
    workers.
    """

    def __init__(self, stream: AbstractDataStream, *, uneven: str, worker: Worker | Shard, name: str = "") -> None:
        super().__init__(stream)
        self.uneven = uneven
        self.name = name
        self.epoch = 0
        self._current = CurrentShard(worker)
        self._batches: Iterator[Any] | None = None
        self._read, self._ended = 0, False
        self._compared = self._warned = False

    def get_epoch_iterator(self, **kwargs: Any) -> DataIterator:
        self._batches = self.stream.get_epoch_iterator()
        self._read, self._ended = 0, False
        self.epoch += 1
        return super().get_epoch_iterator(**kwargs)

    def get_data(self, request: Any = None) -> Any:
        if request is not None:
            raise ValueError(f"got the request {request!r}: this stream takes no requests")
        if self._ended or self._batches is None:
            # Some streams would start the next epoch if they were read now.
            raise StopIteration
        rank, size, _ = self._current.get()
        together = list(islice(self._batches, size))
        read_before, self._read = self._read, self._read + len(together)
        self._ended = len(together) < size
        self._compare(together)
        if not self._ended or (rank < len(together) and self.uneven != "drop"):
            return together[rank]
        if together and self.uneven == "wrap":
            return together[rank % len(together)]
        if not read_before:
            raise ConfigurationError(
                f"got {len(together)} {self._unit} in an epoch for {size} workers, so "
                f"uneven={self.uneven!r} leaves worker {rank} without any: make batches smaller, "
                'use fewer workers, or uneven="wrap"'
            )
        if together and self.uneven == "drop":
            self._warn_of_dropped(len(together), rank)
        raise StopIteration

    @property
    def _unit(self) -> str:
        return "examples" if self.produces_examples else "batches"

    def _compare(self, together: list[Any]) -> None:
        """Raise if another worker has read other batches; do nothing outside of a job."""
        worker = connected()
        if worker is None or worker.global_size == 1 or not self.name:
            return
        if not self._compared:
            self._compared = True
            what = f"what is read from number {self._read - len(together)} of the {self._unit} of epoch {self.epoch} on"
            worker.advanced.require_same(f"{self.name}: {what}", fingerprint(*together), _REMEDY)
        if self._ended:
            what = f"the number of {self._unit} in epoch {self.epoch}"
            worker.advanced.require_same(f"{self.name}: {what}", str(self._read), _REMEDY)

    def _warn_of_dropped(self, dropped: int, rank: int) -> None:
        if not self._warned and not rank:
            log.warning(
                'uneven="drop" omits the last %d of %d %s in an epoch of the stream; uneven="wrap" uses them',
                dropped,
                self._read,
                self._unit,
            )
        self._warned = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compared": False}
