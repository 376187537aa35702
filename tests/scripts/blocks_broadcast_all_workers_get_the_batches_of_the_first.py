import pickle
import numpy as np
from platoon_plugins.blocks import ShardedScheme, shard_stream
from fuel.datasets import IterableDataset
from fuel.streams import DataStream
from fuel.transformers import Batch, Transformer
from fuel.schemes import ConstantScheme, SequentialScheme
from platoon_base import connect


class Kinds(Transformer):
    sources = ("bool", "uint8", "int64", "float32", "scalar")

    def transform_batch(self, batch):
        n = batch[0]
        return n % 2 == 0, n.astype("u1"), n, n.astype("f4") / 3, n.sum()


worker = connect()
# Another worker would read other numbers, and fewer of them.
rows = [np.int64(n + 100 * worker.global_rank) for n in range(8 - worker.global_rank)]
numbers = Batch(DataStream(IterableDataset(rows)), ConstantScheme(3))
stream = shard_stream(Kinds(numbers, produces_examples=False), mode="broadcast")


def check(batch, n):
    n = np.array(n)
    expected = n % 2 == 0, n.astype("u1"), n, n.astype("f4") / 3, np.asarray(n.sum())
    for array, other in zip(batch, expected):
        assert (array.dtype, array.shape) == (other.dtype, other.shape), (array, other)
        assert (array == other).all() and array.flags.writeable
        array[...] = 0


all_rows = [0, 1, 2], [3, 4, 5], [6, 7]
for _ in range(2):
    batches = stream.get_epoch_iterator()
    for n in all_rows:
        check(next(batches), n)
    for _ in range(2 + worker.global_rank):  # after the end nobody is waited for
        assert next(batches, None) is None

# Pickled by the first worker in the middle of an epoch, resumed by all, each with its own shard.
batches, scheme = stream.get_epoch_iterator(as_dict=True), ShardedScheme(SequentialScheme(6, 1))
check(next(batches).values(), all_rows[0])
saved = np.zeros(100_000, np.uint8)
if worker.global_rank == 0:
    blob = pickle.dumps((stream, batches, scheme))
    saved[: len(blob)] = np.frombuffer(blob, np.uint8)
worker.broadcast([saved])
stream, batches, scheme = pickle.loads(saved.tobytes())
assert list(scheme.get_request_iterator()) == [[worker.global_rank], [worker.global_rank + 3]]
assert stream.sources == ("bool", "uint8", "int64", "float32", "scalar") and not stream.produces_examples
for n in all_rows[1:]:
    check(next(batches).values(), n)
assert next(batches, None) is None
worker.report({f"done {worker.global_rank}": 1})
