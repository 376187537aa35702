"""Streams that each worker reads its part of: transformers above, what is refused, and what must be the same."""

import pickle
import socket
from contextlib import ExitStack

import numpy as np
import pytest
from needing import require
from programs import run_python
from scripts_here import script_path

fuel = require("fuel")

from fuel.datasets import IterableDataset
from fuel.schemes import (
    ConcatenatedScheme,
    ConstantScheme,
    SequentialScheme,
    ShuffledExampleScheme,
    ShuffledScheme,
)
from fuel.streams import DataStream, ServerDataStream
from fuel.transformers import (
    Batch,
    Cache,
    Cast,
    Flatten,
    Mapping,
    Merge,
    MultiProcessing,
    ScaleAndShift,
    Transformer,
    Unpack,
)
from fuel_shards import epoch, iterable, joined, labels, rounds, sharded, stream_of, unpickle_as, workers

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import ShardedScheme, shard_stream
from platoon_plugins.blocks.data import with_scheme
from platoon_plugins.blocks.schemes import same_epoch
from platoon_plugins.blocks.streams import BroadcastStream, is_sharded


@pytest.fixture
def reading():
    """End the processes of MultiProcessing streams after the test."""
    with ExitStack() as stack:

        def watched(stream):
            stack.callback(stream.background.batches.close)
            stack.callback(stream.proc.join)
            stack.callback(stream.proc.terminate)
            return stream

        yield watched


def test_streams_need_no_more_than_fuel():
    code = "import sys, platoon_plugins.blocks.data; assert 'blocks' not in sys.modules"
    run_python("-c", code)


# Pickles.


def test_a_chain_and_its_iterator_resume_where_they_were(monkeypatch):
    flat = Flatten(stream_of(ShuffledScheme(23, 2), 23), which_sources=("x",))
    chain = ScaleAndShift(flat, scale=2, shift=1, which_sources=("x",))
    streams = [shard_stream(chain, worker=worker) for worker in workers(2)]
    for stream in streams:
        labels(stream)
    iterators = [stream.get_epoch_iterator() for stream in streams]
    before = rounds([[next(iterator)[1].tolist() for _ in range(2)] for iterator in iterators])
    saved = pickle.dumps((streams[0], iterators[0]))
    rest = []
    for worker in workers(3):
        unpickle_as(worker, monkeypatch)
        stream, iterator = pickle.loads(saved)
        rest.append([batch[1].tolist() for batch in iterator])
        assert iterator.data_stream is stream
        assert [len(labels(stream))] == [4]
    expected = epoch(same_epoch(ShuffledScheme(23, 2), [3, 1]))
    assert before + rounds(rest) == expected


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_stream_of_a_file_goes_on_in_another_process(tmp_path, in_memory):
    """In the middle of an epoch; nobody has the file open there."""
    script = script_path("blocks_data_a_stream_of_a_file_goes_on_in_another")
    for stage in ("begin", "resume"):
        run_python(script, tmp_path / "data.hdf5", stage, in_memory)


# Streams.


def test_transformers_stand_above_the_shard():
    plain = stream_of(SequentialScheme(12, 2))
    chain = Mapping(Cast(Flatten(plain, which_sources=("x",)), "float32"), lambda batch: batch)
    parts = [shard_stream(chain, worker=worker) for worker in workers(2)]
    assert rounds([labels(part) for part in parts]) == labels(chain)
    batch = next(parts[1].get_epoch_iterator(as_dict=True))
    assert (batch["x"].dtype, batch["x"].shape) == (np.float32, (2, 4))
    np.testing.assert_array_equal(batch["x"].ravel(), np.arange(8, 16))
    assert is_sharded(parts[0])
    assert not is_sharded(chain)
    assert parts[0].data_stream.data_stream.data_stream.dataset is plain.dataset


def test_examples_are_dealt_out_below_a_batch():
    batches = Batch(stream_of(ShuffledExampleScheme(13), 13), ConstantScheme(3))
    parts = [shard_stream(batches, uneven="drop", worker=worker) for worker in workers(2)]
    for _ in range(2):
        dealt = [labels(part) for part in parts]
        assert [list(map(len, part)) for part in dealt] == [[3, 3], [3, 3]]
        assert len(set(joined(dealt[0]) + joined(dealt[1]))) == 12


def test_merged_streams_stay_side_by_side():
    """Each side was given a generator of its own; a pair of rows must remain one."""
    sides = [stream_of(ShuffledScheme(12, 2, rng=np.random.RandomState(seed))) for seed in (1, 2)]
    merged = Merge(sides, ("x", "y", "other x", "other y"))
    seen = []
    for worker in workers(2):
        for _, y, _, other in shard_stream(merged, worker=worker).get_epoch_iterator():
            np.testing.assert_array_equal(y, other)
            seen.extend(y)
    assert sorted(seen) == list(range(12))


def test_a_reading_process_reads_the_shard(reading):
    whole = reading(MultiProcessing(stream_of(SequentialScheme(12, 2)), max_store=3))
    part = reading(shard_stream(whole, worker=workers(2)[1]))
    assert [labels(part) for _ in range(2)] == [[[2, 3], [6, 7], [10, 11]]] * 2
    assert labels(whole) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_server_is_given_its_shard_by_numbers():
    scheme = ShuffledScheme(12, 2)
    parts = [shard_stream(stream_of(scheme), rank=rank, size=2, seed=3) for rank in range(2)]
    assert rounds([labels(part) for part in parts]) == epoch(same_epoch(scheme, [3, 0]))
    assert shard_stream(parts[0], rank=0, size=1) is parts[0]


def test_alone_a_stream_stays_as_it_is(solo_worker):
    stream = Flatten(stream_of(ShuffledScheme(12, 2)))
    before = dict(vars(stream))
    for mode in ("shard", "broadcast"):
        assert shard_stream(stream, mode=mode, worker=solo_worker) is stream
        assert shard_stream(DataStream(IterableDataset([1, 2])), mode=mode, worker=solo_worker)
    assert vars(stream) == before


def server(examples=False):
    stream = ServerDataStream(("x",), examples, port=1)
    stream.socket.close()
    stream.socket.context.term()
    return stream


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: shard_stream(np.ones(3), worker=w), "got ndarray: pass a Fuel stream"),
        (lambda w: shard_stream(server(), worker=w), "one server for each worker"),
        (lambda w: shard_stream(Merge([server(examples=True), iterable()], ("x", "y")), worker=w), "one server for"),
        (lambda w: shard_stream(Unpack(server()), mode="broadcast", worker=w), "one server for each worker"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), mode="split", worker=w), "mode='split'"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), uneven="some", worker=w), "uneven='some'"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), rank=1), "both rank and size"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), rank=2, size=2), "both rank and size"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), seed=2, worker=w), "both rank and size"),
        (lambda w: shard_stream(iterable(), rank=0, size=2, mode="broadcast"), "only the workers"),
        (lambda w: shard_stream(shard_stream(stream_of(SequentialScheme(4, 2)), worker=w), worker=w),
            "shard only once"),
        (lambda w: shard_stream(BroadcastStream(iterable(), worker=w), worker=w), "shard only once"),
        (lambda w: shard_stream(Unpack(BroadcastStream(Batch(iterable(), ConstantScheme(2)), worker=w)), worker=w),
         "shard only once"),
        (lambda w: shard_stream(shard_stream(iterable(), worker=w), worker=w), "shard only once"),
        (lambda w: ShardedScheme(ConcatenatedScheme([ConstantScheme(2)]), worker=w), "batch sizes.*deals whole"),
        (lambda w: ShardedScheme(ShardedScheme(SequentialScheme(4, 2), worker=w), worker=w), "shard only once"),
        (lambda w: shard_stream(stream_of(ConcatenatedScheme(sharded(SequentialScheme(4, 2), 2))), worker=w),
         "shard only once"),
        (lambda w: ShardedScheme(SequentialScheme(4, 2), uneven="some", worker=w), "uneven='some'"),
        (lambda w: ShardedScheme(4, worker=w), "got int as the scheme"),
        (lambda w: with_scheme(iterable(), lambda scheme: scheme), "without an iteration scheme"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_out_is_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(workers(2)[0])


def test_each_worker_reads_the_server_of_its_shard(run_job):
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [str(listener.getsockname()[1]) for listener in free]
    outcome = run_job(
        script_path("blocks_data_each_worker_reads_the_server_of_its_shard"), args=ports
    ).require_success()
    orders = [[outcome.reported[f"{n} {rank}"].split() for rank in range(2)] for n in range(2)]
    for first, second in orders:
        assert (len(first), len(second)) == (11, 9)
        assert sorted(map(int, first + second)) == list(range(20))
    assert orders[0] != orders[1]


# What must be the same on all workers, and what must not.

SPLITS = {
    "rows by a random split": (
        "DataStream(data, iteration_scheme=ShuffledScheme(order[:40].tolist(), 4))", "the same rows in the same order",
    ),
    "data by a random split": (
        "Flatten(DataStream(IndexableDataset({'x': x[order[:40]]}), iteration_scheme=SequentialScheme(40, 4)))",
        "data set 3 of IndexableDataset with x, given to shard_stream differs between rank",
    ),
    "fewer of them": ("DataStream(data, iteration_scheme=SequentialScheme(48 - 4 * rank, 4))", "of IndexableDataset"),
    "examples": ("DataStream(data, iteration_scheme=ShuffledExampleScheme(order.tolist()))", "random splits"),
    "batches": ("DataStream(data, iteration_scheme=SequentialScheme(40, 4 + rank))", "the same rows"),
    "file": ("DataStream(in_file(), iteration_scheme=SequentialScheme(50, 4))", "H5PYDataset with x, given to"),
}  # fmt: skip


@pytest.mark.promise
def test_other_data_on_another_worker_are_refused(run_job):
    """Those that are the same come first, one that draws too; a further kind on one worker alone harms nobody."""
    outcome = run_job(
        f"""
        import sys
        from platoon_plugins.blocks import shard_stream
        import h5py
        import numpy as np
        from fuel.datasets import H5PYDataset, IndexableDataset
        from fuel.schemes import SequentialScheme, ShuffledExampleScheme, ShuffledScheme
        from fuel.streams import DataStream
        from fuel.transformers import Flatten
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError

        worker = connect()
        rank = worker.global_rank
        x = np.arange(100.0).reshape(50, 2)
        data = IndexableDataset({{"x": x}})
        order = np.random.RandomState(rank).permutation(50)

        def in_file():
            path = f"{{sys.argv[1]}}/{{rank}}.hdf5"
            with h5py.File(path, "w") as file:
                file["x"] = x + rank
                file.attrs["split"] = H5PYDataset.create_split_array({{"train": {{"x": (0, 50)}}}})
            return H5PYDataset(path, which_sets=("train",))

        whole = DataStream(data, iteration_scheme=ShuffledScheme(50, 4, rng=np.random.RandomState(rank)))
        shard_stream(Flatten(whole))

        class Drawing(IndexableDataset):
            def get_data(self, state=None, request=None):
                return tuple(x + np.random.normal(size=x.shape) for x in super().get_data(state, request))

        shard_stream(DataStream(Drawing({{"drawn": x}}), iteration_scheme=SequentialScheme(50, 4)))
        if rank:
            shard_stream(DataStream(IndexableDataset({{"other": x}}), iteration_scheme=SequentialScheme(50, 4)))
        for name, make in {[(name, make) for name, (make, _) in SPLITS.items()]}:
            try:
                shard_stream(eval(make))
            except ConfigurationError as error:
                worker.report({{name: str(error)}})
        """
    ).require_success()
    assert outcome.reported.keys() == SPLITS.keys()
    for name, (_, complaint) in SPLITS.items():
        assert complaint in outcome.reported[name]


class Noisy(Transformer):
    """Add noise, as the transformers of images do that are in Fuel."""

    def __init__(self, stream, rng):
        super().__init__(stream, produces_examples=False)
        self.rng = rng

    def transform_batch(self, batch):
        return batch[0] * 0 + self.rng.normal(size=batch[0].shape), batch[1]


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_transformers_draw_other_numbers_on_each_worker(make):
    """The same script on each; on the first it draws what one process draws, and everywhere the same once more."""

    def draws(worker):
        stream = Flatten(Noisy(stream_of(SequentialScheme(12, 4)), make(5)))
        batches = (stream if worker is None else shard_stream(stream, worker=worker)).get_epoch_iterator()
        return np.asarray(next(batches)[0])

    alone, again = draws(None), draws(workers(3)[2])
    parts = [draws(worker) for worker in workers(3)]
    np.testing.assert_array_equal(parts[0], alone)
    np.testing.assert_array_equal(parts[2], again)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (parts[one] != parts[other]).all()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Cache(stream_of(SequentialScheme(42, 10), 42), ConstantScheme(4)),
        lambda: Batch(Unpack(stream_of(SequentialScheme(42, 10), 42)), ConstantScheme(4), strictness=1),
    ],
    ids=["Cache", "strict Batch"],
)
def test_rows_that_fill_no_batch_are_left_out_once_and_not_on_each_worker(make, size):
    def batches(stream):
        return [np.asarray(batch[1]).tolist() for batch in stream.get_epoch_iterator()]

    parts = [batches(shard_stream(make(), rank=rank, size=size)) for rank in range(size)]
    assert sorted(joined(parts)) == sorted(batches(make()))
