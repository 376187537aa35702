"""A stream that the first worker reads for all."""

import numpy as np
import pytest
from needing import require
from scripts_here import script_path

fuel = require("fuel")

from fuel.transformers import Transformer
from fuel_shards import iterable

from platoon_plugins.blocks.streams import BroadcastStream, is_sharded


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
    with pytest.raises(ValueError, match="takes no requests"):
        stream.get_data(3)


def test_all_workers_get_the_batches_of_the_first(run_job):
    outcome = run_job(script_path("blocks_broadcast_all_workers_get_the_batches_of_the_first"), 3).require_success()
    assert outcome.reported == {f"done {rank}": 1 for rank in range(3)}


def test_what_stops_the_first_worker_is_told_to_the_others(run_job):
    outcome = run_job(script_path("blocks_broadcast_what_stops_the_first_worker_is_told")).require_success()
    told = outcome.reported
    assert told["OSError 0"] == "the disk is full of bees"
    assert "worker 0, which reads the data for all, failed with OSError: the disk is full of bees" in told["OSError 1"]
    assert told["ConfigurationError 0"] in told["ConfigurationError 1"]
    assert "only arrays of numbers" in told["ConfigurationError 0"]
    assert "KeyError: 'no such file'" in told["KeyError 1"]
