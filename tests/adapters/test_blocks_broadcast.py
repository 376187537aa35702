"""A stream that the first worker reads for all."""

import numpy as np
import pytest

from platoon_base import compat

compat.apply()
fuel = pytest.importorskip("fuel", reason="needs Fuel: `make setup` installs it on Python 3.11")

from fuel.datasets import IterableDataset
from fuel.streams import DataStream
from fuel.transformers import Transformer
from fuel_shards import iterable

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.broadcast import BroadcastStream
from platoon_plugins.blocks.streams import is_sharded


class Reshape(Transformer):
    """Make of each number of a stream data of all dtypes."""

    sources = ("flags", "bytes", "numbers", "reals", "scalar", "list", "nothing")

    def transform_example(self, example):
        (n,) = example
        array = np.arange(3 * n, dtype=np.uint8)
        return (array % 2 == 0, array, array.astype(np.int64) - 5, np.asfortranarray(array.astype("f4").reshape(3, n)),
                n, [1.5, n], np.empty((0, 3)))  # fmt: skip


def test_alone_a_broadcast_stream_reads_for_itself(solo_worker):
    stream = BroadcastStream(Reshape(iterable(), produces_examples=True), worker=solo_worker)
    assert not is_sharded(stream)
    for _ in range(2):
        batches = list(stream.get_epoch_iterator(as_dict=True))
        assert [len(batch["bytes"]) for batch in batches] == [3, 6, 9]
        for batch in batches:
            assert [str(batch[name].dtype) for name in stream.sources] == [
                "bool", "uint8", "int64", "float32", "int64", "float64", "float64"
            ]  # fmt: skip
            assert all(array.flags.writeable and array.flags.aligned for array in batch.values())
            assert (batch["scalar"].shape, batch["nothing"].shape) == ((), (0, 3))
            np.testing.assert_array_equal(batch["reals"], batch["bytes"].reshape(3, -1))
            np.testing.assert_array_equal(batch["flags"], batch["bytes"] % 2 == 0)
    assert stream.produces_examples
    with pytest.raises(ValueError, match="takes none"):
        stream.get_data(3)


@pytest.mark.parametrize("data", [["some", "text"], [[1], [2, 3]], np.array([None, 1]), np.zeros(2, "M8[s]")])
def test_what_is_no_numbers_is_not_sent(solo_worker, data):
    stream = BroadcastStream(DataStream(IterableDataset([data])), worker=solo_worker)
    with pytest.raises(ConfigurationError, match="'data': only arrays of numbers"):
        next(stream.get_epoch_iterator())


def test_all_workers_get_the_batches_of_the_first(run_job):
    outcome = run_job(
        """
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
        """,
        3,
    ).require_success()
    assert outcome.reported == {f"done {rank}": 1 for rank in range(3)}


def test_what_stops_the_first_worker_is_told_to_the_others(run_job):
    outcome = run_job(
        """
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
            except (error if worker.global_rank == 0 else PlatoonError) as exc:
                worker.report({f"{error.__name__} {worker.global_rank}": str(exc)})
        """
    ).require_success()
    told = outcome.reported
    assert told["OSError 0"] == "the disk is full of bees"
    assert "worker 0, which reads the data for all, failed with OSError: the disk is full of bees" in told["OSError 1"]
    assert told["ConfigurationError 0"] in told["ConfigurationError 1"]
    assert "only arrays of numbers" in told["ConfigurationError 0"]
    assert "KeyError: 'no such file'" in told["KeyError 1"]
