"""Fuel streams that know their shard: who reads which rows, where a pickled stream goes on, and one reader for all."""

import pickle
import socket
import subprocess
import sys
from collections import OrderedDict
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base import compat

compat.apply()
fuel = pytest.importorskip("fuel", reason="needs Fuel: `make setup` installs it on Python 3.11")

from fuel.datasets import IndexableDataset, IterableDataset
from fuel.schemes import (
    BatchScheme,
    ConcatenatedScheme,
    ConstantScheme,
    SequentialExampleScheme,
    SequentialScheme,
    ShuffledExampleScheme,
    ShuffledScheme,
    cross_validation,
)
from fuel.streams import DataStream, ServerDataStream
from fuel.transformers import (
    Batch,
    Cast,
    Flatten,
    Mapping,
    Merge,
    MultiProcessing,
    Padding,
    ScaleAndShift,
    Transformer,
    Unpack,
)

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import schemes
from platoon_plugins.blocks.broadcast import BroadcastStream
from platoon_plugins.blocks.schemes import ShardedScheme, same_epoch
from platoon_plugins.blocks.streams import is_sharded, shard_stream, with_scheme

BATCH_SCHEMES = [SequentialScheme, ShuffledScheme]
EXAMPLE_SCHEMES = [SequentialExampleScheme, ShuffledExampleScheme]
UNEVEN = ["keep", "drop", "wrap"]


def places(size, seed=3):
    """Stand in for the workers of a job, of which a shard needs no more than the numbers."""
    return [SimpleNamespace(global_rank=rank, global_size=size, seed=seed) for rank in range(size)]


def sharded(scheme, size, **options):
    return [ShardedScheme(scheme, worker=place, **options) for place in places(size)]


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


@pytest.fixture
def move(monkeypatch):
    """Let this process be another worker when something is unpickled."""
    return lambda worker: monkeypatch.setattr(schemes, "connected", lambda: worker)


def test_streams_need_no_more_than_fuel():
    code = "import sys, platoon_plugins.blocks.streams; assert 'blocks' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


# Requests.


@given(
    rows=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    size=st.integers(1, 7),
    uneven=st.sampled_from(UNEVEN),
    kind=st.sampled_from(BATCH_SCHEMES + EXAMPLE_SCHEMES),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_each_request_is_one_workers(rows, batch_size, size, uneven, kind):
    scheme = kind(rows, batch_size) if kind in BATCH_SCHEMES else kind(rows)
    whole = epoch(same_epoch(scheme, [3, 0]))
    parts = sharded(scheme, size, uneven=uneven)
    if uneven == "drop" and len(whole) < size:
        for part in parts:
            unit = "batches" if kind in BATCH_SCHEMES else "examples"
            with pytest.raises(ConfigurationError, match=f"got {len(whole)} {unit} in an epoch.* leaves nothing"):
                epoch(part)
        return
    dealt = [epoch(part) for part in parts]
    missing = -len(whole) % size
    expected = {
        "keep": whole,
        "drop": whole[: len(whole) - len(whole) % size],
        "wrap": whole + (whole * size)[:missing],
    }[uneven]
    assert rounds(dealt) == expected
    if uneven != "keep":
        assert len(set(map(len, dealt))) == 1
    for part, got in zip(parts, dealt):
        assert part.num_examples // part.batch_size == len(got)  # what the progress bar of Blocks shows
        assert part.requests_examples == scheme.requests_examples


@pytest.mark.parametrize("kind", BATCH_SCHEMES)
def test_batches_of_all_workers_are_the_large_batches_of_one_process(kind):
    large = epoch(ShardedScheme(kind(60, 15), worker=places(1)[0]))
    parts = [epoch(part) for part in sharded(kind(60, 5), 3)]
    for k, batch in enumerate(large):
        assert joined(part[k] for part in parts) == batch


@pytest.mark.parametrize("kind", [ShuffledScheme, ShuffledExampleScheme])
def test_the_order_follows_from_the_seed_and_the_epoch_alone(kind):
    def orders(seed, *generators):
        given = [kind(40, **({"batch_size": 4} if kind is ShuffledScheme else {}), rng=rng) for rng in generators]
        parts = [ShardedScheme(scheme, worker=place) for scheme, place in zip(given, places(len(given), seed))]
        return [rounds([epoch(part) for part in parts]) for _ in range(3)]

    first = orders(3, np.random.RandomState(1), np.random.RandomState(2))
    assert first == orders(3, None, None) == orders(3, None, None, None)
    assert first[0] != first[1] != first[2] != first[0]
    assert first != orders(4, None, None)


def test_generators_of_numpy_1_17_stay_such():
    class Newer(BatchScheme):
        rng = np.random.default_rng(0)

        def get_request_iterator(self):
            return iter(self.rng.integers(100, size=5).tolist())

    first, second = (same_epoch(Newer(5, 1), [1, 2]) for _ in range(2))
    assert epoch(first) == epoch(second)
    assert epoch(first) != epoch(Newer(5, 1))


def test_schemes_given_stay_as_they_are():
    scheme, twin = (ShuffledScheme(30, 4, rng=np.random.RandomState(8)) for _ in range(2))
    both = ConcatenatedScheme([scheme, SequentialScheme(8, 4)])
    stream = Flatten(stream_of(both, 30))
    before = dict(vars(stream)), dict(vars(stream.data_stream)), list(both.schemes)
    for place in places(2):
        labels(shard_stream(stream, worker=place))
    assert (vars(stream), vars(stream.data_stream), both.schemes) == before
    assert epoch(scheme) == epoch(twin)


def test_concatenated_schemes_are_shuffled_each_in_its_own_way():
    both = ConcatenatedScheme([ShuffledScheme(20, 4), ShuffledScheme(range(20, 40), 4), SequentialScheme(7, 4)])
    dealt = rounds([epoch(part) for part in sharded(both, 3)])
    assert sorted(joined(dealt[:5])) == list(range(20))
    assert sorted(joined(dealt[5:10])) == list(range(20, 40))
    assert [row + 20 for row in joined(dealt[:5])] != joined(dealt[5:10])
    assert dealt[10:] == [[0, 1, 2, 3], [4, 5, 6]]
    assert not hasattr(sharded(both, 3)[0], "num_examples")


def test_folds_of_a_cross_validation_are_dealt_out():
    for train, valid in cross_validation(ShuffledScheme, 24, 3, batch_size=3):
        seen = [sorted(joined(rounds([epoch(part) for part in sharded(scheme, 2)]))) for scheme in (train, valid)]
        assert sorted(seen[0] + seen[1]) == list(range(24))
        assert len(seen[1]) == 8


# Pickles.


@given(
    requests=st.integers(1, 40),
    size=st.integers(1, 5),
    later=st.integers(1, 5),
    steps=st.integers(0, 10),
    begun=st.integers(0, 2),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_pickled_amid_an_epoch_other_workers_go_on(requests, size, later, steps, begun):
    """What the first worker pickled is loaded by every worker of a job of another size."""
    parts = sharded(ShuffledScheme(2 * requests, 2), size)
    for part in parts:
        for _ in range(begun):
            part.get_request_iterator()
    iterators = [part.get_request_iterator() for part in parts]
    before = rounds([[request for _, request in zip(range(steps), iterator)] for iterator in iterators])
    saved = pickle.dumps((parts[0], iterators[0]))
    resumed = [pickle.loads(saved) for _ in range(later)]
    with pytest.MonkeyPatch.context() as patch:
        rest, following = [], []
        for place, (scheme, iterator) in zip(places(later, seed=9), resumed):
            patch.setattr(schemes, "connected", lambda place=place: place)
            rest.append(list(iterator))
            following.append(epoch(scheme))
    assert before + rounds(rest) == epoch(same_epoch(ShuffledScheme(2 * requests, 2), [3, begun]))
    assert rounds(following) == epoch(same_epoch(ShuffledScheme(2 * requests, 2), [9, begun + 1]))


def test_a_process_that_is_no_worker_keeps_the_place_it_was_given(move):
    part = sharded(SequentialScheme(12, 2), 3)[1]
    expected = epoch(part)
    assert epoch(pickle.loads(pickle.dumps(part))) == expected
    move(places(2)[0])
    assert epoch(pickle.loads(pickle.dumps(part))) == [[0, 1], [4, 5], [8, 9]]
    assert epoch(part) == expected


def test_a_chain_and_its_iterator_resume_where_they_were(move):
    flat = Flatten(stream_of(ShuffledScheme(23, 2), 23), which_sources=("x",))
    chain = ScaleAndShift(flat, scale=2, shift=1, which_sources=("x",))
    streams = [shard_stream(chain, worker=place) for place in places(2)]
    for stream in streams:
        labels(stream)
    iterators = [stream.get_epoch_iterator() for stream in streams]
    before = rounds([[next(iterator)[1].tolist() for _ in range(2)] for iterator in iterators])
    saved = pickle.dumps((streams[0], iterators[0]))
    rest = []
    for place in places(3):
        move(place)
        stream, iterator = pickle.loads(saved)
        rest.append([batch[1].tolist() for batch in iterator])
        assert iterator.data_stream is stream
        assert [len(labels(stream))] == [4]
    expected = epoch(same_epoch(ShuffledScheme(23, 2), [3, 1]))
    assert before + rounds(rest) == expected


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_stream_of_a_file_goes_on_in_another_process(tmp_path, in_memory):
    """In the middle of an epoch; nobody has the file open there."""
    script = """
import pickle, sys
from platoon_base import compat
compat.apply()
import h5py
import numpy as np
from fuel.datasets import H5PYDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream
path, stage, in_memory = sys.argv[1:]
if stage == "begin":
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(12)
        file.attrs["split"] = H5PYDataset.create_split_array({"train": {"y": (0, 12)}})
    data = H5PYDataset(path, which_sets=("train",), load_in_memory=in_memory == "True")
    batches = DataStream(data, iteration_scheme=SequentialScheme(12, 4)).get_epoch_iterator()
    next(batches)
    with open(path + ".pickle", "wb") as file:
        pickle.dump(batches, file)
else:
    with open(path + ".pickle", "rb") as file:
        batches = pickle.load(file)
    rows = [y.tolist() for (y,) in batches]
    assert rows == [[4, 5, 6, 7], [8, 9, 10, 11]], rows
    assert len(list(batches.data_stream.get_epoch_iterator())) == 3
"""
    for stage in ("begin", "resume"):
        command = [sys.executable, "-c", script, tmp_path / "data.hdf5", stage, str(in_memory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr


# Streams.


def test_transformers_stand_above_the_shard():
    plain = stream_of(SequentialScheme(12, 2))
    chain = Mapping(Cast(Flatten(plain, which_sources=("x",)), "float32"), lambda batch: batch)
    parts = [shard_stream(chain, worker=place) for place in places(2)]
    assert rounds([labels(part) for part in parts]) == labels(chain)
    batch = next(parts[1].get_epoch_iterator(as_dict=True))
    assert (batch["x"].dtype, batch["x"].shape) == (np.float32, (2, 4))
    np.testing.assert_array_equal(batch["x"].ravel(), np.arange(8, 16))
    assert is_sharded(parts[0])
    assert not is_sharded(chain)
    assert parts[0].data_stream.data_stream.data_stream.dataset is plain.dataset


def test_examples_are_dealt_out_below_a_batch():
    batches = Batch(stream_of(ShuffledExampleScheme(13), 13), ConstantScheme(3))
    parts = [shard_stream(batches, uneven="drop", worker=place) for place in places(2)]
    for _ in range(2):
        dealt = [labels(part) for part in parts]
        assert [list(map(len, part)) for part in dealt] == [[3, 3], [3, 3]]
        assert len(set(joined(dealt[0]) + joined(dealt[1]))) == 12


def test_batches_are_dealt_out_below_an_unpacking():
    chain = Unpack(stream_of(SequentialScheme(12, 2)))
    assert [labels(shard_stream(chain, worker=place)) for place in places(3)] == [[0, 1, 6, 7], [2, 3, 8, 9],
                                                                                  [4, 5, 10, 11]]  # fmt: skip


def test_ragged_rows_are_padded_above_the_shard():
    ragged = np.empty(6, object)
    ragged[:] = [np.arange(n + 1) for n in range(6)]
    stream = Padding(DataStream(IndexableDataset(ragged), iteration_scheme=SequentialScheme(6, 2)))
    shapes = [[data.shape for data, mask in shard_stream(stream, worker=place).get_epoch_iterator()]
              for place in places(3)]  # fmt: skip
    assert shapes == [[(2, 2)], [(2, 4)], [(2, 6)]]


def test_merged_streams_stay_side_by_side():
    """Each side was given a generator of its own; a pair of rows must remain one."""
    sides = [stream_of(ShuffledScheme(12, 2, rng=np.random.RandomState(seed))) for seed in (1, 2)]
    merged = Merge(sides, ("x", "y", "other x", "other y"))
    seen = []
    for place in places(2):
        for _, y, _, other in shard_stream(merged, worker=place).get_epoch_iterator():
            np.testing.assert_array_equal(y, other)
            seen.extend(y)
    assert sorted(seen) == list(range(12))


def test_a_reading_process_reads_the_shard(reading):
    whole = reading(MultiProcessing(stream_of(SequentialScheme(12, 2)), max_store=3))
    part = reading(shard_stream(whole, worker=places(2)[1]))
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


def test_any_scheme_can_take_the_place_of_another():
    stream = Flatten(stream_of(SequentialScheme(12, 2)), which_sources=("x",))
    other = with_scheme(stream, lambda scheme: SequentialScheme(scheme.indices, 4))
    assert labels(other) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(labels(stream)) == 6


def iterable():
    return DataStream(IterableDataset([1, 2, 3]))


def server():
    stream = ServerDataStream(("x",), False, port=1)
    stream.socket.close()
    stream.socket.context.term()
    return stream


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: shard_stream(np.ones(3), worker=w), "got ndarray: pass a Fuel stream"),
        (lambda w: shard_stream(iterable(), worker=w), 'mode="broadcast"'),
        (lambda w: shard_stream(Merge([stream_of(SequentialScheme(4, 2)), Batch(iterable(), ConstantScheme(2))],
                                      ("x", "y", "z")), worker=w), "without an iteration scheme"),
        (lambda w: shard_stream(server(), worker=w), "one server for each worker"),
        (lambda w: shard_stream(Unpack(server()), mode="broadcast", worker=w), "one server for each worker"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), mode="split", worker=w), "mode='split'"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), uneven="some", worker=w), "uneven='some'"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), rank=1), "both rank and size"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), rank=2, size=2), "both rank and size"),
        (lambda w: shard_stream(stream_of(SequentialScheme(4, 2)), seed=2, worker=w), "both rank and size"),
        (lambda w: shard_stream(iterable(), rank=0, size=2, mode="broadcast"), "only the workers"),
        (lambda w: shard_stream(shard_stream(stream_of(SequentialScheme(4, 2)), worker=w), worker=w), "shard once"),
        (lambda w: shard_stream(BroadcastStream(iterable(), w), worker=w), "shard once"),
        (lambda w: shard_stream(DataStream(IterableDataset([1]), iteration_scheme=ConstantScheme(2)), worker=w),
         "sizes of batches.*; use SequentialScheme or ShuffledScheme .*mode=\"broadcast\""),
        (lambda w: ShardedScheme(ConcatenatedScheme([ConstantScheme(2)]), worker=w), "sizes of batches"),
        (lambda w: ShardedScheme(ShardedScheme(SequentialScheme(4, 2), worker=w), worker=w), "shard once"),
        (lambda w: shard_stream(stream_of(ConcatenatedScheme(sharded(SequentialScheme(4, 2), 2))), worker=w),
         "shard once"),
        (lambda w: ShardedScheme(SequentialScheme(4, 2), uneven="some", worker=w), "uneven='some'"),
        (lambda w: ShardedScheme(4, worker=w), "got int as the scheme"),
        (lambda w: with_scheme(iterable(), lambda scheme: scheme), "without an iteration scheme"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_out_is_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(places(2)[0])


def test_a_refusal_starts_no_process(reading):
    side = reading(MultiProcessing(stream_of(SequentialScheme(4, 2)), max_store=3))
    merged = Merge([side, Batch(iterable(), ConstantScheme(2))], ("x", "y", "z"))
    with pytest.raises(ConfigurationError, match="without an iteration scheme"):
        shard_stream(merged, worker=places(2)[0])


# One reader for all.


class Reshape(Transformer):
    """Make of each number of a stream data of all dtypes."""

    sources = ("flags", "bytes", "numbers", "reals", "scalar", "list", "nothing")

    def transform_example(self, example):
        (n,) = example
        array = np.arange(3 * n, dtype=np.uint8)
        return (array % 2 == 0, array, array.astype(np.int64) - 5, np.asfortranarray(array.astype("f4").reshape(3, n)),
                n, [1.5, n], np.empty((0, 3)))  # fmt: skip


def test_alone_a_broadcast_stream_reads_for_itself(solo_worker):
    stream = BroadcastStream(Reshape(iterable(), produces_examples=True), solo_worker)
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
    stream = BroadcastStream(DataStream(IterableDataset([data])), solo_worker)
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

        # Pickled by the first worker amid an epoch, resumed by all, each in its own place.
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


def test_each_worker_reads_the_server_of_its_shard(run_job):
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [str(listener.getsockname()[1]) for listener in free]
    outcome = run_job(
        """
        import sys
        from multiprocessing import Process
        from platoon_plugins.blocks import shard_stream
        import numpy as np
        from fuel.datasets import IndexableDataset
        from fuel.schemes import ShuffledScheme
        from fuel.server import start_server
        from fuel.streams import DataStream, ServerDataStream
        from platoon_base import connect

        worker = connect()
        ports = [int(port) for port in sys.argv[2:]]
        servers = []
        if worker.global_rank == 0:
            stream = DataStream(IndexableDataset(np.arange(20)), iteration_scheme=ShuffledScheme(20, 3))
            for rank, port in enumerate(ports):
                server = Process(target=start_server, args=(shard_stream(stream, rank=rank, size=2), port))
                server.start()
                servers.append(server)
        train = ServerDataStream(("data",), False, port=ports[worker.global_rank])
        try:
            for epoch in range(2):
                rows = np.concatenate([data for (data,) in train.get_epoch_iterator()])
                worker.report({f"{epoch} {worker.global_rank}": " ".join(map(str, rows))})
            worker.barrier()
        finally:
            for server in servers:
                server.terminate()
                server.join()
        """,
        args=ports,
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
        "data set 3 of IndexableDataset with x, given to shard_stream differs: rank",
    ),
    "fewer of them": ("DataStream(data, iteration_scheme=SequentialScheme(48 - 4 * rank, 4))", "of IndexableDataset"),
    "examples": ("DataStream(data, iteration_scheme=ShuffledExampleScheme(order.tolist()))", "random splits"),
    "batches": ("DataStream(data, iteration_scheme=SequentialScheme(40, 4 + rank))", "the same rows"),
    "file": ("DataStream(in_file(), iteration_scheme=SequentialScheme(50, 4))", "H5PYDataset with x, given to"),
}  # fmt: skip


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

    def draws(place):
        stream = Flatten(Noisy(stream_of(SequentialScheme(12, 4)), make(5)))
        batches = (stream if place is None else shard_stream(stream, worker=place)).get_epoch_iterator()
        return np.asarray(next(batches)[0])

    alone, again = draws(None), draws(places(3)[2])
    parts = [draws(place) for place in places(3)]
    np.testing.assert_array_equal(parts[0], alone)
    np.testing.assert_array_equal(parts[2], again)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (parts[one] != parts[other]).all()
