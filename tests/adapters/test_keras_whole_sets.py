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


@pytest.mark.skipif(KERAS_2, reason="this is the state of metrics of Keras 3: run it in .nox/keras3")
def test_metrics_of_workers_with_unequal_rows_are_those_of_scikit_learn():
    expected = pytest.importorskip("sklearn.metrics")
    from platoon_base.metrics import add_vectors
    from platoon_plugins.keras.backends.keras3 import Keras3Metrics

    rng = np.random.default_rng(0)
    # No score is a threshold of AUC, and each two scores have one between them.
    scores = ((rng.integers(0, 200, (1000, 1)) + 0.5) / 200).astype("float32")
    labels = (rng.uniform(size=scores.shape) < scores).astype("float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    names = keras.metrics
    f1 = names.F1Score("micro", threshold=0.5, name="f1")
    kinds = [names.AUC(201, name="auc"), names.Precision(name="p"), names.Recall(name="r"), f1]
    model.compile("sgd", "mse", metrics=kinds)
    states, vectors = Keras3Metrics(model), []
    for rows in np.split(np.arange(1000), [7, 400, 403]):
        model.evaluate(scores[rows], labels[rows], batch_size=64, verbose=0)
        state = states.test_state()
        vectors.append(np.concatenate([np.ravel(s) for s in state], dtype="<f8").tobytes())
    ends = np.cumsum([np.size(s) for s in state])
    total = np.split(np.frombuffer(add_vectors(vectors)), ends[:-1])
    found = states.results([part.reshape(np.shape(s)) for part, s in zip(total, state)])
    y, chosen = labels[:, 0], scores[:, 0] > 0.5
    assert found["loss"] == pytest.approx(expected.mean_squared_error(y, scores[:, 0]), rel=1e-6)
    assert found["auc"] == pytest.approx(expected.roc_auc_score(y, scores[:, 0]), rel=1e-6)
    assert found["p"] == pytest.approx(expected.precision_score(y, chosen), rel=1e-6)
    assert found["r"] == pytest.approx(expected.recall_score(y, chosen), rel=1e-6)
    assert found["f1"] == pytest.approx(expected.f1_score(y, chosen, average="binary"), rel=1e-6)
