from platoon_plugins.blocks import shard_stream
from fuel.datasets import IterableDataset
from fuel.streams import DataStream
from fuel.transformers import Mapping, Transformer
from platoon_base import connect
from platoon_base.errors import ConfigurationError, PlatoonError


class Missing(Transformer):
    def get_epoch_iterator(self, **kwargs):
        raise KeyError("no such file")


def fail(example):
    raise OSError("the disk is full of bees")


worker = connect()
numbers = DataStream(IterableDataset([1, 2]))
words = DataStream(IterableDataset(["a", "b"]))
missing = Missing(numbers, produces_examples=True)
for stream, error in ((Mapping(numbers, fail), OSError), (words, ConfigurationError), (missing, KeyError)):
    try:
        next(shard_stream(stream, mode="broadcast").get_epoch_iterator())
    except error if worker.global_rank == 0 else PlatoonError as exc:
        worker.report({f"{error.__name__} {worker.global_rank}": str(exc)})
