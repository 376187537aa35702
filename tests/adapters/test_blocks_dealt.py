"""Streams without row numbers, such as those of text files: every worker reads all and keeps each N-th batch."""

import pickle

import numpy as np
import pytest
from needing import needs_blocks, require
from scripts_here import script_path

fuel = require("fuel")

from fuel.datasets import IterableDataset, TextFile
from fuel.schemes import ConstantScheme, SequentialScheme
from fuel.streams import DataStream
from fuel.transformers import Batch, Filter, Mapping, Merge, Padding, Transformer, Unpack
from fuel_shards import rounds, stream_of, unpickle_as, workers

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import shard_stream
from platoon_plugins.blocks.streams import is_sharded

# Fuel's Batch makes arrays of lists of different lengths, and its TextFile closes no file.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO"),
]


def batches_of(numbers=range(14), size=2):
    """Return a stream of batches of numbers, from a data set that gives them one by one."""
    return Batch(DataStream(IterableDataset(list(numbers))), ConstantScheme(size))


def epoch(stream):
    return [[np.asarray(part).tolist() for part in batch] for batch in stream.get_epoch_iterator()]


def dealt(stream, size, **options):
    """Return an epoch of each worker."""
    return [epoch(shard_stream(stream, worker=worker, **options)) for worker in workers(size)]


@pytest.fixture
def text(tmp_path):
    """Return a stream of the lines of a text file."""
    path = tmp_path / "lines.txt"
    path.write_text("".join("ab"[n % 2] * (n % 5 + 1) + "\n" for n in range(11)))
    return DataStream(TextFile([str(path)], {"a": 0, "b": 1}, bos_token=None, eos_token=None, unk_token=None,
                               level="character"))  # fmt: skip


# Which batches go where.


def test_batches_of_a_text_file_are_dealt_out_and_transformers_see_those_alone(text):
    """Padding needs whole batches; a mapping above is called for the worker's own."""
    seen = [[], []]
    for worker in workers(2):

        def reverse(batch, calls=seen[worker.global_rank]):
            calls.append(len(batch[0]))
            return tuple(part[:, ::-1] for part in batch)

        stream = shard_stream(Mapping(Padding(Batch(text, ConstantScheme(2))), reverse), worker=worker)
        assert is_sharded(stream)
        assert stream.sources == ("features", "features_mask")
        alone = epoch(Mapping(Padding(Batch(text, ConstantScheme(2))), lambda batch: tuple(p[:, ::-1] for p in batch)))
        for _ in range(2):
            assert epoch(stream) == alone[worker.global_rank :: 2]
    assert seen == [[2, 2, 2] * 2, [2, 2, 1] * 2]


@pytest.mark.parametrize(
    ("uneven", "expected"),
    [
        ("keep", [[[0, 1], [6, 7], [12, 13]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]),
        ("drop", [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]),
        ("wrap", [[[0, 1], [6, 7], [12, 13]], [[2, 3], [8, 9], [12, 13]], [[4, 5], [10, 11], [12, 13]]]),
    ],
)
def test_seven_batches_for_three_workers(uneven, expected, caplog):
    parts = dealt(batches_of(), 3, uneven=uneven)
    assert [[batch for (batch,) in part] for part in parts] == expected
    told = 'uneven="drop" omits the last 1 of 7 batches'
    assert caplog.text.count(told) == (uneven == "drop"), "by the first worker, once"


def test_five_batches_for_three_workers_begin_the_last_round_again():
    first, second, third = dealt(batches_of(range(10)), 3, uneven="wrap")
    assert [first[1], second[1], third[1]] == [[[6, 7]], [[8, 9]], [[6, 7]]]


def test_what_makes_other_batches_stands_below():
    """A filter would leave one worker more than another, and an unpacked batch is not one example."""
    odd = Filter(batches_of(range(9), 1), lambda batch: batch[0][0] % 2)
    assert rounds(dealt(odd, 2)) == [[[1]], [[3]], [[5]], [[7]]]
    assert rounds(dealt(Unpack(batches_of(range(5))), 2)) == [[n] for n in range(5)]
    merged = Merge([stream_of(SequentialScheme(6, 2)), batches_of(range(6))], ("x", "y", "n"))
    assert [numbers for _, _, numbers in rounds(dealt(merged, 2))] == [[0, 1], [2, 3], [4, 5]]


class Noisy(Transformer):
    def __init__(self, stream):
        super().__init__(stream, produces_examples=False)
        self.rng = np.random.RandomState(1)

    def transform_batch(self, batch):
        return (batch[0] + self.rng.normal(size=batch[0].shape),)


def test_noise_differs_above_the_deal_and_is_the_same_below():
    above = [np.concatenate(part) for part in dealt(Noisy(batches_of([0] * 8)), 2)]
    assert (above[0] != above[1]).all()

    def below():
        return Filter(Noisy(batches_of(range(8))), lambda batch: True)

    assert rounds([epoch(shard_stream(below(), worker=worker)) for worker in workers(2)]) == epoch(below())


def test_too_few_batches_for_the_workers_are_an_error():
    parts = [shard_stream(batches_of([1, 2]), worker=worker) for worker in workers(2)]
    assert epoch(parts[0]) == [[[1, 2]]]
    with pytest.raises(ConfigurationError, match="got 1 batches in an epoch for 2 workers.*worker 1 without any"):
        epoch(parts[1])
    with pytest.raises(ConfigurationError, match='uneven="wrap"'):
        epoch(shard_stream(batches_of([1, 2]), uneven="drop", worker=workers(2)[0]))
    assert rounds(dealt(batches_of([1, 2]), 2, uneven="wrap")) == [[[1, 2]], [[1, 2]]]


def test_a_pickled_stream_goes_on_in_the_middle_of_an_epoch_with_more_workers(text, monkeypatch):
    whole = epoch(Padding(Batch(text, ConstantScheme(1))))
    stream = shard_stream(Padding(Batch(text, ConstantScheme(1))), worker=workers(2)[0])
    iterator = stream.get_epoch_iterator()
    next(iterator), next(iterator)
    saved, rest = pickle.dumps((stream, iterator)), []
    for worker in workers(3):
        unpickle_as(worker, monkeypatch)
        stream, iterator = pickle.loads(saved)
        rest.append([[part.tolist() for part in batch] for batch in iterator])
        assert iterator.data_stream is stream
        assert epoch(stream) == whole[worker.global_rank :: 3]
    assert rounds(rest) == whole[4:]


# Jobs.


def test_streams_that_differ_between_workers_are_refused(run_job):
    """A generator without a seed; a file that is shorter on one worker is noticed at the end of the epoch."""
    outcome = run_job(script_path("blocks_dealt_streams_that_differ_between_workers")).require_success()
    assert outcome.reported.keys() == {"drawn 0", "shorter 0", "shorter 1"}
    assert "from number 0 of the batches of epoch 1 on differs" in outcome.reported["drawn 0"]
    assert "leave shard_stream out" in outcome.reported["drawn 0"]
    assert "the number of batches in epoch 2 differs" in outcome.reported["shorter 1"]


@needs_blocks
def test_averaged_gradients_of_examples_are_one_process_with_larger_batches(run_blocks):
    run_blocks(script_path("blocks_dealt_averaged_gradients_of_examples")).require_success()


@needs_blocks
@pytest.mark.parametrize("sync", [False, pytest.param(True, marks=pytest.mark.promise)])
def test_a_pickled_main_loop_trains_the_rest_of_the_epoch(run_blocks, sync):
    """Stopped after the second of five batches of each worker; the main loop that is loaded makes the other three."""
    outcome = run_blocks(script_path("blocks_dealt_pickled"), args=[str(sync)])
    outcome.require_success()
