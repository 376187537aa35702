"""A worker's part of a DataLoader: rows computed by hand, for all kinds of samplers and data sets."""

import copy
import io
import pickle
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from platoon_base.errors import ConfigurationError
from platoon_base.torch_loops.loaders import Part, divided, rows_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.loops,
    pytest.mark.filterwarnings("ignore:the last batches of a DataLoader"),
]


class Stream(IterableDataset):
    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        return iter(torch.arange(self._rows))


class Shuffled(Stream):
    def __iter__(self):
        return iter(torch.randperm(self._rows))


def parts_of(make, size, passes=1, least=1, epoch=0):
    """Return the batches of each worker, as lists of rows; ``make`` makes the loader of one worker."""
    sent, found = {}, []
    for rank in range(size):

        def require_same(name, mark, remedy):
            assert sent.setdefault(name, mark) == mark, remedy

        advanced = SimpleNamespace(require_same=require_same)
        at = SimpleNamespace(epoch=epoch)
        worker = SimpleNamespace(global_rank=rank, global_size=size, seed=5, advanced=advanced, resume_at=at)
        torch.manual_seed(7 + rank)  # Draws of its own do not count.
        loader = make()
        part = Part(loader, worker, 1, least)
        made = divided(loader, part, lambda part, batches: ((part.rows(batch), batch) for batch in batches))
        read = []
        for _ in range(passes):
            read += list(made)
            assert part.whole is None or len(made) * (1 + _) == len(read)
        assert all(rows == rows_of(batch) for rows, batch in read)
        found.append([torch.as_tensor(batch[0] if isinstance(batch, list) else batch).tolist() for _, batch in read])
    return found


def rows(count):
    return TensorDataset(torch.arange(count))


@pytest.mark.parametrize(
    ("count", "batch", "expected"),
    [
        (8, 2, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        (10, 2, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        (11, 2, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]),
        (9, 2, [[[0, 1], [4, 5]], [[2, 3], [6, 7, 8]]]),  # One row for two workers.
        (3, 4, [[[0]], [[1, 2]]]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_rounds_go_to_the_workers_in_turn(count, batch, expected, workers):
    assert parts_of(lambda: DataLoader(rows(count), batch, num_workers=workers), 2) == expected


@pytest.mark.parametrize("iterable", [False, True])
def test_a_resumed_job_repeats_the_rows_of_its_epoch_in_their_order(iterable):
    """Each pass has an order of its own, and each row once."""

    def make():
        return DataLoader(Shuffled(12), 2) if iterable else DataLoader(rows(12), 2, shuffle=True)

    through = parts_of(make, 2, passes=4)
    resumed = parts_of(make, 2, passes=2, epoch=3)
    assert resumed == [batches[6:] for batches in through]
    for first in range(0, 12, 3):
        read = [row for part in through for batch in part[first : first + 3] for row in batch]
        assert sorted(read) == list(range(12))
    assert len({str(through[0][first : first + 3]) for first in range(0, 12, 3)}) == 4


def test_batches_of_one_row_are_avoided_for_batch_norm():
    assert parts_of(lambda: DataLoader(rows(10), 2), 2, least=2) == [[[0, 1], [4, 5, 6]], [[2, 3], [7, 8, 9]]]
    assert parts_of(lambda: DataLoader(rows(2), 2), 2, least=2) == [[[0]], [[1]]]


def test_drop_last_leaves_incomplete_rounds_out():
    found = parts_of(lambda: DataLoader(rows(11), 2, drop_last=True), 2)
    assert found == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(rows(23), 3, shuffle=True),
        lambda: DataLoader(rows(23), 3, shuffle=True, generator=torch.Generator().manual_seed(1)),
        lambda: DataLoader(rows(23), batch_sampler=BatchSampler(RandomSampler(range(23)), 3, False)),
        lambda: DataLoader(rows(23), 3, shuffle=True, num_workers=1, persistent_workers=True),
    ],
    ids=["shuffle", "generator", "batch_sampler", "persistent"],
)
@pytest.mark.parametrize("size", [2, 3])
def test_a_shuffle_is_one_permutation_of_all(make, size):
    found = parts_of(make, size, passes=2)
    assert {len(batches) for batches in found} == {2 * -(-23 // 3 // size)}
    half = len(found[0]) // 2
    orders = [[row for part in found for batch in part[at] for row in batch] for at in (slice(half), slice(half, None))]
    for order in orders:
        assert sorted(order) == list(range(23))
    assert orders[0] != orders[1]


def test_a_sampler_that_repeats_rows_is_dealt_too():
    weights = WeightedRandomSampler([1.0] * 6, 20)
    found = parts_of(lambda: DataLoader(rows(6), 2, sampler=weights), 2)
    assert [len(batches) for batches in found] == [5, 5]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (8, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        (7, [[[0, 1], [4, 5]], [[2, 3], [6]]]),
        (6, [[[0, 1], [4]], [[2, 3], [5]]]),
        (9, [[[0, 1], [4, 5]], [[2, 3], [6, 7, 8]]]),
    ],
)
def test_streams_are_read_by_all(count, expected):
    assert parts_of(lambda: DataLoader(Stream(count), 2), 2) == expected


def test_single_rows_are_dealt_in_whole_rounds():
    assert parts_of(lambda: DataLoader(rows(5), None, sampler=SequentialSampler(range(5))), 2) == [[0, 2], [1, 3]]


def test_too_few_rows_are_refused():
    with pytest.raises(ConfigurationError, match="too few rows for 3 workers"):
        parts_of(lambda: DataLoader(rows(2), 4), 3)


def test_different_orders_are_refused():
    counts = iter([20, 21])
    with pytest.raises(AssertionError, match="the same rows in the same order"):
        parts_of(lambda: DataLoader(rows(next(counts)), 2), 2)


def test_a_distributed_sampler_for_other_ranks_is_refused():
    ranks = iter([0, 1])
    sampled = lambda: DistributedSampler(rows(8), 2, next(ranks), shuffle=False)  # noqa: E731
    assert parts_of(lambda: DataLoader(rows(8), 2, sampler=sampled()), 2) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    with pytest.raises(ConfigurationError, match="leave the sampler out"):
        parts_of(lambda: DataLoader(rows(8), 2, sampler=DistributedSampler(rows(8), 3, 2)), 2)


def test_a_loader_stays_one_of_its_class():
    class Own(DataLoader):
        pass

    worker = SimpleNamespace(global_rank=0, global_size=2, seed=5, resume_at=SimpleNamespace(epoch=0))
    loader = Own(rows(8), 2)
    made = divided(loader, Part(loader, worker, 1), lambda part, batches: batches)
    assert isinstance(made, Own)
    assert (len(loader), len(made), len(made.dataset), made.batch_size) == (4, 2, 8, 2)


@pytest.mark.parametrize("make", [lambda: DataLoader(rows(8), 2), lambda: DataLoader(Stream(8), 2)])
def test_a_pickle_is_the_given_loader_and_a_copy_reads_the_rows_of_its_worker(make, solo_worker):
    # A real handle, which cannot be pickled, says that it is the second of two.
    worker = SimpleNamespace(handle=solo_worker, **{"global_rank": 1, "global_size": 2, "seed": 5})
    worker.resume_at = SimpleNamespace(epoch=0)
    worker.advanced = SimpleNamespace(require_same=lambda *_: None)
    made = divided(make(), Part(make(), worker, 1), lambda part, batches: batches)
    read = [torch.as_tensor(batch[0] if isinstance(batch, list) else batch).tolist() for batch in made]
    assert read == [[2, 3], [6, 7]]
    file = io.BytesIO()
    torch.save({"trainer": made}, file)
    file.seek(0)
    for loaded in pickle.loads(pickle.dumps(made)), torch.load(file, weights_only=False)["trainer"]:
        assert type(loaded) is DataLoader
        assert len(list(loaded)) == 4
    for copied in copy.copy(made), copy.deepcopy(made):
        assert [torch.as_tensor(b[0] if isinstance(b, list) else b).tolist() for b in copied] == read
