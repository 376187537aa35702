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


def test_optimizers_get_the_look_ups_of_one_process(run_keras):
    """The same row many times in a batch, in two layers of which one has a dense gradient too; uneven batches."""
    run_keras(script_path("keras_embeddings_optimizers_get_the_look_ups_of_one_process")).require_success()


def test_a_loss_without_a_reduction_is_a_sum(run_keras):
    run_keras(script_path("keras_embeddings_a_loss_without_a_reduction_is_a_sum")).require_success()
