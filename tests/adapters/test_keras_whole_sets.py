"""Evaluation and prediction of a whole data set by several workers, outside of a fit."""

import numpy as np
import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


def test_values_and_order_are_those_of_one_process(run_keras):
    """Of unequal shards, several inputs and outputs, predictions of integers, few rows, and masked losses."""
    run_keras(script_path("keras_whole_sets_values_and_order_are_those_of_one_process")).require_success()


def test_alone_they_are_those_of_keras(solo_worker):
    from platoon_plugins.keras import evaluate, predict

    dense = [keras.layers.Dense(2, input_shape=(3,))] if KERAS_2 else [keras.Input((3,)), keras.layers.Dense(2)]
    model = keras.Sequential(dense)
    model.compile("sgd", loss="mse")
    x, y = np.ones((5, 3)), np.ones((5, 2))
    assert evaluate(model, x, y, verbose=0, worker=solo_worker) == model.evaluate(x, y, verbose=0)
    assert (predict(model, x, verbose=0, worker=solo_worker) == model.predict(x, verbose=0)).all()
