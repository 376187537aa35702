"""Weights of samples and of classes, vectors, arrays cast by Keras, and rows that do not divide evenly."""

from keras_preamble import *
from keras_reshuffling_marks import *


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
        shard(pandas.DataFrame({"number": x[:, 0].astype("float64"), "sign": x[:, 0] > 0}), y)
        moves(rows_of_fit(*shard(torch.from_numpy(x), torch.from_numpy(y))))
    if keras.backend.backend() == "tensorflow":
        moves(rows_of_fit(*shard(x, keras.ops.convert_to_tensor(y))))
        first, second = shard(x[:-1], keras.ops.convert_to_tensor(y[:-1]), uneven="wrap")
        assert len(first) == len(second) == ROWS // 2
