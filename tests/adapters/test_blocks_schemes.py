"""Iteration schemes that give each worker its part: which requests, in which order, and after a pickle."""

import pickle

import numpy as np
import pytest
from needing import require

fuel = require("fuel")

from fuel.schemes import (
    ConcatenatedScheme,
    SequentialExampleScheme,
    SequentialScheme,
    ShuffledExampleScheme,
    ShuffledScheme,
)
from fuel_shards import epoch, joined, rounds, sharded, unpickle_as, workers
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import ShardedScheme
from platoon_plugins.blocks.schemes import same_epoch

BATCH_SCHEMES = [SequentialScheme, ShuffledScheme]
EXAMPLE_SCHEMES = [SequentialExampleScheme, ShuffledExampleScheme]
UNEVEN = ["keep", "drop", "wrap"]


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
            with pytest.raises(ConfigurationError, match=f"got {len(whole)} {unit} in an epoch.* leaves none"):
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


@pytest.mark.parametrize("kind", [ShuffledScheme, ShuffledExampleScheme])
def test_the_order_follows_from_the_seed_and_the_epoch_alone(kind):
    def orders(seed, *generators):
        given = [kind(40, **({"batch_size": 4} if kind is ShuffledScheme else {}), rng=rng) for rng in generators]
        parts = [ShardedScheme(scheme, worker=worker) for scheme, worker in zip(given, workers(len(given), seed))]
        return [rounds([epoch(part) for part in parts]) for _ in range(3)]

    first = orders(3, np.random.RandomState(1), np.random.RandomState(2))
    assert first == orders(3, None, None) == orders(3, None, None, None)
    assert first[0] != first[1] != first[2] != first[0]
    assert first != orders(4, None, None)


def test_concatenated_schemes_are_shuffled_each_in_its_own_way():
    both = ConcatenatedScheme([ShuffledScheme(20, 4), ShuffledScheme(range(20, 40), 4), SequentialScheme(7, 4)])
    dealt = rounds([epoch(part) for part in sharded(both, 3)])
    assert sorted(joined(dealt[:5])) == list(range(20))
    assert sorted(joined(dealt[5:10])) == list(range(20, 40))
    assert [row + 20 for row in joined(dealt[:5])] != joined(dealt[5:10])
    assert dealt[10:] == [[0, 1, 2, 3], [4, 5, 6]]
    assert not hasattr(sharded(both, 3)[0], "num_examples")


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
        for worker, (scheme, iterator) in zip(workers(later, seed=9), resumed):
            unpickle_as(worker, patch)
            rest.append(list(iterator))
            following.append(epoch(scheme))
    assert before + rounds(rest) == epoch(same_epoch(ShuffledScheme(2 * requests, 2), [3, begun]))
    assert rounds(following) == epoch(same_epoch(ShuffledScheme(2 * requests, 2), [9, begun + 1]))


def test_a_process_that_is_no_worker_keeps_the_shard_it_was_given(monkeypatch):
    part = sharded(SequentialScheme(12, 2), 3)[1]
    expected = epoch(part)
    assert epoch(pickle.loads(pickle.dumps(part))) == expected
    unpickle_as(workers(2)[0], monkeypatch)
    assert epoch(pickle.loads(pickle.dumps(part))) == [[0, 1], [4, 5], [8, 9]]
    assert epoch(part) == expected
