"""Shards: every row has one owner, all ranks deal out the same order, seeds differ."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from platoon_base.errors import ConfigurationError
from platoon_base.sharding import epoch_indices, require_uneven, shard_bounds, shard_seed, take

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True)
rows = st.integers(0, 300)
sizes = st.integers(1, 17)


def shards(n, size, **options):
    return [epoch_indices(n, rank, size, **options) for rank in range(size)]


@EXAMPLES
@given(n=st.integers(0, 10**12), size=st.integers(1, 256))
def test_bounds_meet_and_sizes_differ_by_at_most_one(n, size):
    bounds = [shard_bounds(n, rank, size) for rank in range(size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == n
    assert all(stop == start for (_, stop), (start, _) in zip(bounds, bounds[1:]))
    assert {stop - start for start, stop in bounds} <= {n // size, -(-n // size)}


@EXAMPLES
@given(n=rows, size=sizes, shuffle=st.booleans(), epoch=st.integers(0, 5))
def test_keep_gives_every_row_to_one_rank(n, size, shuffle, epoch):
    found = shards(n, size, shuffle=shuffle, epoch=epoch, uneven="keep")
    assert sorted(np.concatenate(found)) == list(range(n))
    assert {len(shard) for shard in found} <= {n // size, -(-n // size)}


@EXAMPLES
@given(n=rows, size=sizes, shuffle=st.booleans())
def test_drop_gives_equal_shards_and_no_row_twice(n, size, shuffle):
    assume(n >= size)
    found = shards(n, size, shuffle=shuffle, uneven="drop")
    assert {len(shard) for shard in found} == {n // size}
    assert len(set(np.concatenate(found))) == n - n % size


@pytest.mark.parametrize(("n", "size"), [(1, 2), (3, 4), (1, 250)])
def test_drop_that_would_leave_nothing_is_refused(n, size):
    with pytest.raises(ConfigurationError, match=f'{n} rows for {size} workers.*uneven="wrap"'):
        shards(n, size, uneven="drop")


@EXAMPLES
@given(n=rows, size=sizes, shuffle=st.booleans())
def test_wrap_gives_equal_shards_with_every_row(n, size, shuffle):
    found = shards(n, size, shuffle=shuffle, uneven="wrap")
    assert {len(shard) for shard in found} == {-(-n // size)}
    assert set(np.concatenate(found)) == set(range(n))


@pytest.mark.parametrize(
    ("uneven", "expected"),
    [
        ("keep", [[0, 3, 6], [1, 4], [2, 5]]),
        ("drop", [[0, 3], [1, 4], [2, 5]]),
        ("wrap", [[0, 3, 6], [1, 4, 0], [2, 5, 1]]),
    ],
)
def test_seven_rows_on_three_workers(uneven, expected):
    assert [shard.tolist() for shard in shards(7, 3, uneven=uneven)] == expected


@EXAMPLES
@given(n=rows, size=sizes, seed=st.integers(0, 2**63), epoch=st.integers(0, 100))
def test_all_ranks_deal_out_the_same_permutation(n, size, seed, epoch):
    options = {"shuffle": True, "seed": seed, "epoch": epoch}
    whole = epoch_indices(n, 0, 1, **options)
    hands = [[] for _ in range(size)]
    for place, row in enumerate(whole):
        hands[place % size].append(row)
    assert [shard.tolist() for shard in shards(n, size, **options)] == hands


@EXAMPLES
@given(n=rows, size=sizes, batch=st.integers(1, 20), shuffle=st.booleans())
def test_the_mini_batches_of_all_ranks_are_the_large_ones_of_one_process(n, size, batch, shuffle):
    whole, found = epoch_indices(n, 0, 1, shuffle=shuffle), shards(n, size, shuffle=shuffle)
    for k in range(-(-n // (size * batch))):
        together = np.concatenate([shard[k * batch : (k + 1) * batch] for shard in found])
        assert sorted(together) == sorted(whole[k * size * batch : (k + 1) * size * batch])


def test_the_permutation_is_numpys():
    expected = np.random.default_rng([3, 8]).permutation(50)
    np.testing.assert_array_equal(epoch_indices(50, 0, 1, shuffle=True, seed=3, epoch=8), expected)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, -1)])
def test_a_rank_outside_the_job_is_refused(rank, size):
    with pytest.raises(ConfigurationError, match="rank"):
        shard_bounds(10, rank, size)
    with pytest.raises(ConfigurationError, match="rank"):
        epoch_indices(10, rank, size)


def test_what_cannot_be_sharded_is_refused():
    with pytest.raises(ConfigurationError, match="n=-1"):
        epoch_indices(-1, 0, 1)
    for call in (require_uneven, lambda uneven: epoch_indices(10, 0, 1, uneven=uneven)):
        with pytest.raises(ConfigurationError, match="got uneven='pad': it must be one of keep, drop, wrap"):
            call("pad")


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63])
def test_every_rank_has_its_own_seed(seed):
    seeds = [shard_seed(seed, rank) for rank in range(256)]
    assert len(set(seeds)) == 256
    assert seeds == [shard_seed(seed, rank) for rank in range(256)]
    assert all(0 <= s < 2**32 for s in seeds), "NumPy's and Theano's generators take 32 bits"


def test_another_job_has_other_seeds():
    assert len({shard_seed(seed, rank) for seed in range(20) for rank in range(20)}) == 400


@pytest.mark.parametrize(
    ("data", "text"),
    [(iter("abc"), "iterator"), ((x for x in "abc"), "iterator"), ({1, 2}, "got set"), (7, "got int"), (None, "None")],
    ids=["iterator", "generator", "set", "int", "None"],
)
def test_take_from_what_has_no_rows_is_refused(data, text):
    with pytest.raises(ConfigurationError, match=text):
        take(data, np.array([0]))
