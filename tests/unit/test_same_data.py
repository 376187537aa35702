"""What a worker tells of its data; that others are refused is tested where data are divided."""

from collections.abc import Sequence

import numpy as np
import pytest

from platoon_base.fingerprint import DataSeen, kind_of
from platoon_base.sharding import Position

pytestmark = pytest.mark.base

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20)


def names(seen, *data):
    return [told and told.name for told in (seen.register(part, kind_of(*part)) for part in data)]


def test_data_sets_of_one_kind_are_counted_when_they_come_first():
    assert names(DataSeen(), (X, Y), (X[::-1], Y), (X[:8], Y[:8]), (Y,), (X, Y), (X.copy(), Y.copy()), ({"b": X},)) == [
        "data set 1 of rows like float64[2], int64[]",
        "data set 2 of rows like float64[2], int64[]",
        "data set 3 of rows like float64[2], int64[]",
        "data set 1 of rows like int64[]",
        None,
        None,
        "data set 1 of rows like {b: float64[2]}",
    ]


def test_a_worker_that_goes_on_elsewhere_tells_by_another_name():
    (here,), (there,) = (names(DataSeen(Position(epoch, 2, 9)), (Y,)) for epoch in (3, 4))
    assert here == "data set 1 of rows like int64[] from epoch 3, mini-batch 2 on"
    assert there != here


def test_long_kinds_stay_apart():
    first, second = names(DataSeen(), ({"x" * 200 + "a": Y},), ({"x" * 200 + "b": Y},))
    assert first != second
    assert len(first) < 150


def test_data_that_draw_are_not_told():
    class Augmented(Sequence):
        """Images, say, of which each reading makes others."""

        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            return X[index] + np.random.normal()

    assert names(DataSeen(), (Augmented(), Y), (X, Y)) == [None, "data set 1 of rows like float64[2], int64[]"]


def test_rows_of_different_lengths_have_a_kind():
    """Such as those of a tf.RaggedTensor, whose shape has a None."""

    class Ragged(list):
        shape, dtype = (2, None), "float32"

    assert kind_of(Ragged([[1.0], [2.0, 3.0]])) == "rows like float32[None]"
