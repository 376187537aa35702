"""Rows of `shard` in a fit: each epoch deals them out anew, and every row goes with its own label, once."""

from itertools import chain

import keras_here  # noqa: F401 - skips the file where there is no Keras
import pytest

from platoon_base.sharding import epoch_indices, shard_seed

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

ROWS = 48

# A model of one weight for each row, whose gradient is minus the label of each row of the batch, over the batch's size.
# So the step of a batch, with a rate of that size, has the labels of its rows where these rows are.
MARKS = """
ROWS, BATCH = 48, 4
x, y = np.eye(ROWS, dtype="float32"), np.arange(1, ROWS + 1, dtype="float32")[:, None]

def marking(optimizer=None):
    layers = [L.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(ROWS,))] if KERAS_2 else [
        keras.Input((ROWS,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(float(BATCH)), loss=lambda y, p: -y * p)
    return model

class Rows(keras.callbacks.Callback):
    def __init__(self, marks):
        super().__init__()
        self.marks, self.seen = marks, {}

    def weights(self):
        return self.model.get_weights()[0].ravel().copy()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.before, self.seen[epoch] = epoch, self.weights(), []

    def on_train_batch_end(self, batch, logs=None):
        now = self.weights()
        step, self.before = now - self.before, now
        rows = np.flatnonzero(abs(step) > 0.5)
        assert abs(step[rows] - self.marks[rows]).max() < 1e-2, (rows, step)  # with their own labels, once
        self.seen[self.epoch].append([int(row) for row in rows])

def rows_of_fit(*data, epochs=3, marks=y.ravel(), **options):
    watch = Rows(marks)
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, **options}
    marking().fit(*data, callbacks=distribute([watch], rule=EASGD(), every_n_batches=1000), **options)
    return watch.seen

def report(name, seen):
    for epoch, batches in seen.items():
        worker.report({f"{name} {epoch} {rank}": ";".join(" ".join(map(str, batch)) for batch in batches)})

def fixed(seen):
    own = set(range(rank, ROWS, size))
    return all(set(sum(batches, [])) == own for batches in seen.values())
"""


def rows_in(outcome, name, epoch, rank):
    """Return the batches that a worker reported, as lists of rows."""
    return [[int(row) for row in batch.split()] for batch in outcome.reported[f"{name} {epoch} {rank}"].split(";")]


@pytest.mark.parametrize("workers", [2, 3])
def test_each_epoch_deals_all_rows_out_anew(run_keras, workers):
    """The rows of an epoch are those of the common permutation; batches have the size that fit was told."""
    outcome = run_keras(
        MARKS
        + """
mine = shard(x, y)
copies = [array.copy() for array in mine]
report("first", rows_of_fit(*mine))
assert all((array == copy).all() for array, copy in zip(mine, copies))
report("again", rows_of_fit(*mine))
report("resumed", rows_of_fit(*mine, initial_epoch=2, epochs=4))
worker.report({"seed": worker.seed})
""",
        workers=workers,
    )
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


def test_a_user_who_does_not_shuffle_keeps_rows_and_their_order(run_keras):
    run_keras(
        MARKS
        + """
seen = rows_of_fit(*shard(x, y), shuffle=False)
assert all(batches == np.arange(rank, ROWS, size).reshape(-1, BATCH).tolist() for batches in seen.values()), seen
for seen in (rows_of_fit(*shard(x, y, reshuffle=False)), rows_of_fit(*shard(x, y), shuffle="batch")):
    assert fixed(seen), seen
"""
    ).require_success()


def test_only_unchanged_arrays_of_shard_are_dealt_out_anew(run_keras):
    """Other arrays would no longer go with their rows; where one stands beside those of shard, the leader says so."""
    run_keras(
        MARKS
        + """
import warnings
from platoon_base.system.warn import said

def warned(*data, **options):
    said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = rows_of_fit(*data, **options)
    assert fixed(seen), seen
    return [str(w.message) for w in caught if "keeps its rows" in str(w.message)]

mine, labels = shard(x, y)
told = warned(mine * 1, labels)
assert [text for text in told if "has not returned" in text] == told and len(told) == (rank == 0), told
told = warned(mine, labels, sample_weight=np.full(len(mine), 1 + 1e-5, "float32"))
assert len(told) == (rank == 0) and all("has not returned" in text for text in told), told
assert warned(mine * 1, labels * 1) == []
other = shard(x, y)
for array in other:
    array *= 1 if rank else 1.0001  # on one worker alone
told = warned(*other)
assert len(told) == (rank == 0) and all("has been changed" in text for text in told), told
x, y = np.eye(ROWS, dtype="float32"), np.arange(1, ROWS + 1, dtype="float32")[:, None]
steps = {} if KERAS_2 else {"steps_per_epoch": 2, "epochs": 1}
if steps:
    rows = sum(rows_of_fit(*shard(x, y), **steps)[0], [])
    assert set(rows) <= set(range(rank, ROWS, size)) and len(rows) == 2 * BATCH, rows
"""
    ).require_success()


def test_whatever_goes_with_the_rows_moves_with_them(run_keras):
    """Weights of samples and of classes, vectors, arrays cast by Keras, and rows that do not divide evenly."""
    run_keras(
        MARKS
        + """
def moves(seen, leave_out=0):
    for batches in seen.values():
        rows = worker.gather(" ".join(map(str, sum(batches, []))))
        rows = [int(row) for part in rows for row in part.split()]
        assert len(rows) == len(set(rows)) == ROWS - leave_out, rows
    assert not fixed(seen), seen

mine, ones, scale = shard(x, np.ones((ROWS, 1), "float32"), y.ravel())
moves(rows_of_fit(mine, ones, sample_weight=scale))  # label times weight is the mark of the row
moves(rows_of_fit(*shard(x, y.ravel())))
moves(rows_of_fit(*shard(x.astype("float64"), y.astype("float64"))))
train, valid = shard(x, y, validation_split=1 / 3)
before = [array.copy() for array in valid]
moves(rows_of_fit(*train, validation_data=valid), leave_out=16)
assert all((array == copy).all() for array, copy in zip(valid, before))
if not KERAS_2:
    moves(rows_of_fit(*shard(x, y), class_weight={k: 2.0 for k in range(ROWS + 1)}, marks=2 * y.ravel()))
    if keras.backend.backend() == "torch":  # in whose environment pandas is
        import pandas
        import torch
        moves(rows_of_fit(*shard(pandas.DataFrame(x), pandas.DataFrame(y))))
        moves(rows_of_fit(*shard(torch.from_numpy(x), torch.from_numpy(y))))
"""
    ).require_success()


@pytest.mark.parametrize("uneven", ["keep", "drop", "wrap"])
def test_steps_in_an_epoch_stay_the_same(run_keras, uneven):
    """On 3 workers 47 rows are 16, 16 and 15, or less or more; in each epoch the same number on each worker."""
    run_keras(
        MARKS
        + f"""
x, y = x[:-1], y[:-1]
mine = shard(x, y, uneven={uneven!r})
seen = rows_of_fit(*mine, batch_size=1, epochs=3, marks=y.ravel() * BATCH)
"""
        + """
assert {len(batches) for batches in seen.values()} == {len(mine[0])}, seen
assert not fixed(seen), seen
""",
        workers=3,
    ).require_success()
