from platoon_plugins.blocks import shard_stream
import numpy as np
from fuel.datasets import IterableDataset
from fuel.schemes import ConstantScheme
from fuel.streams import DataStream
from fuel.transformers import Batch
from platoon_base import connect
from platoon_base.errors import ConfigurationError

worker = connect()
rank = worker.global_rank


class Numbers:
    def __init__(self, numbers):
        self.numbers = list(numbers)

    def __iter__(self):
        return iter(self.numbers)


def batches(numbers):
    return shard_stream(Batch(DataStream(IterableDataset(Numbers(numbers))), ConstantScheme(2)))


for name, stream in {
    "same": batches(range(8)),
    "other": batches(range(1, 9)),  # of another training
    "drawn": batches(np.random.RandomState(rank).normal(size=8)),
    "shorter": batches(range(12 - 2 * rank)),
}.items():
    for epoch in range(2):
        worker.barrier(f"{name} {epoch}")
        try:
            list(stream.get_epoch_iterator())
        except ConfigurationError as error:
            worker.report({f"{name} {epoch}": str(error)})
