"""Rows of `shard` in a fit: each epoch deals them out anew, and every row goes with its own label, once."""

from itertools import chain

import pytest
from keras_here import keras  # skips the file where there is no Keras
from scripts_here import script_path

from platoon_base.sharding import epoch_indices, shard_seed

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

ROWS = 48

# A model of one weight for each row, whose gradient is minus the label of each row of the batch, over the batch's size.
# So the step of a batch, with a rate of that size, has the labels of its rows where these rows are.
MARKS = script_path("keras_reshuffling_marks").read_text()


def rows_in(outcome, name, epoch, rank):
    """Return the batches that a worker reported, as lists of rows."""
    return [[int(row) for row in batch.split()] for batch in outcome.reported[f"{name} {epoch} {rank}"].split(";")]


def test_each_epoch_deals_all_rows_out_anew(run_keras):
    """The rows of an epoch are those of the common permutation; batches have the size that fit was told."""
    workers = 3
    outcome = run_keras(script_path("keras_reshuffling_each_epoch_deals_all_rows_out_anew"), workers=workers)
    outcome.require_success()
    seed = int(outcome.reported["seed"])
    for number, (name, epochs) in enumerate({"first": (0, 1, 2), "again": (0, 1, 2), "resumed": (2, 3)}.items()):
        for epoch in epochs:
            dealt = [rows_in(outcome, name, epoch, rank) for rank in range(workers)]
            drawn_from = shard_seed(seed, number) if number else seed
            together = []
            for rank, batches in enumerate(dealt):
                rows = list(chain(*batches))
                expected = epoch_indices(ROWS, rank, workers, shuffle=True, seed=drawn_from, epoch=epoch)
                assert [len(batch) for batch in batches] == [4] * (ROWS // workers // 4)
                assert sorted(rows) == sorted(expected), (name, epoch, rank)
                assert rows != sorted(rows)
                together += rows
            assert sorted(together) == list(range(ROWS)), (name, epoch)
    owners = {tuple(sorted(chain(*rows_in(outcome, name, 2, 0)))) for name in ("first", "again", "resumed")}
    assert len(owners) == 3, "each fit has permutations of its own"


@pytest.mark.parametrize(
    "script",
    [
        "a_user_who_does_not_shuffle_keeps_rows_and_their_order",
        "only_unchanged_arrays_of_shard_are_dealt_out_anew",
        "whatever_goes_with_the_rows_moves_with_them",
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_reshuffling_{script}")).require_success()


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow copies all arrays into tensors")
def test_no_worker_holds_a_copy_of_its_rows(run_keras, tmp_path):
    """Neither of arrays nor of mapped files, while it trains: 120 MB, of which each of two workers reads a half."""
    script = script_path("keras_reshuffling_no_worker_holds_a_copy_of_its_rows")
    run_keras(script, args=[str(tmp_path)]).require_success()


def test_steps_in_an_epoch_stay_the_same(run_keras):
    """On 3 workers 47 rows are 16, 16 and 15; in each epoch the same number on each worker."""
    run_keras(
        MARKS
        + """
x, y = x[:-1], y[:-1]
mine = shard(x, y)
seen = rows_of_fit(*mine, batch_size=1, epochs=3, marks=y.ravel() * BATCH)
"""
        + """
assert {len(batches) for batches in seen.values()} == {len(mine[0])}, seen
assert not fixed(seen), seen
""",
        workers=3,
    ).require_success()
