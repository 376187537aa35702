"""Fuel streams for the tests, and shards of them for several workers in one process."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
from fuel.datasets import IndexableDataset, IterableDataset
from fuel.streams import DataStream

from platoon_plugins.blocks import schemes
from platoon_plugins.blocks.schemes import ShardedScheme


def workers(size, seed=3):
    """Stand in for the workers of a job, of which a shard needs no more than the numbers."""
    return [SimpleNamespace(global_rank=rank, global_size=size, seed=seed) for rank in range(size)]


def sharded(scheme, size, **options):
    return [ShardedScheme(scheme, worker=worker, **options) for worker in workers(size)]


def epoch(scheme):
    return list(scheme.get_request_iterator())


def joined(requests):
    return [row for request in requests for row in request]


def rounds(parts):
    """Put what the workers of a job got together again, step by step."""
    steps = max(map(len, parts))
    return [part[step] for step in range(steps) for part in parts if step < len(part)]


def dataset(rows=12):
    x = np.arange(4.0 * rows).reshape(rows, 2, 2)
    return IndexableDataset(OrderedDict([("x", x), ("y", np.arange(rows))]))


def stream_of(scheme, rows=12):
    return DataStream(dataset(rows), iteration_scheme=scheme)


def labels(stream):
    """Return the labels of one epoch, batch by batch."""
    at = stream.sources.index("y")
    return [np.asarray(batch[at]).tolist() for batch in stream.get_epoch_iterator()]


def iterable():
    """Return a stream of three numbers, without an iteration scheme."""
    return DataStream(IterableDataset([1, 2, 3]))


def unpickle_as(worker, monkeypatch):
    """Let this process be a worker, or none, when it unpickles something."""
    monkeypatch.setattr(schemes, "connected", lambda: worker)
