"""Gradients of embeddings on TensorFlow, which are lists of rows, and losses that it adds up itself."""

import pytest
from keras_here import keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="about TensorFlow: run it in .nox/tf (make test)"
    ),
]


@pytest.mark.parametrize(
    "script",
    [
        "optimizers_get_the_look_ups_of_one_process",
        "a_loss_without_a_reduction_is_a_sum",
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_embeddings_{script}")).require_success()
