"""Data that workers should have alike, and data of which each should have its part, on every back end."""

import numpy as np
import pytest
from keras_here import keras, on_keras_3, on_torch
from scripts_here import script_path

from platoon_plugins.keras.read_order import ReadOrder, difference

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]


@on_torch(pytest.mark.promise)
def test_other_splits_on_each_worker_are_refused(run_keras):
    """By a random split without a seed, or a mask, rows that one worker trains on are another's for validation."""
    run_keras(script_path("keras_same_data_other_splits_on_each_worker_are_refused")).require_success()


def test_a_fit_of_the_same_data_on_all_workers_says_so(run_keras):
    """And a torch DataLoader that is sharded trains as one process does."""
    outcome = run_keras(script_path("keras_same_data_a_fit_of_the_same_data_on_all_workers_says")).require_success()
    text = " WARNING platoon_base.system.warn: the 2 workers train on the same data"  # which the launcher shows
    assert [text in log for log in outcome.logs] == [True, False]


@pytest.mark.parametrize(
    ("labels", "others", "agree"),
    [("012345678", "012345678", True), ("123405678", "012345678", False), ("000000000", "000000000", False)],
)
def test_labels_in_the_same_order_identify_batches_whose_inputs_are_random(labels, others, agree):
    """Not if they are few, nor if they end alike."""
    orders = [ReadOrder("", "", 2) for _ in range(2)]
    for order, kinds in zip(orders, (labels, others)):
        for kind in kinds:
            order.add((np.random.default_rng().random(4), np.full(4, int(kind))))
    marks, theirs = (order.reading().marks for order in orders)
    assert difference(marks, theirs) == (0 if agree else 1)


@on_keras_3(pytest.mark.promise)
def test_each_row_is_read_once_or_all_workers_raise(run_keras):
    """By the means of three powers of the labels; orders that differ late, in validation, in each kind of data."""
    workers = 3 if keras.backend.backend() == "torch" else 2
    run_keras(script_path("keras_same_data_the_order_that_is_read"), workers=workers).require_success()
