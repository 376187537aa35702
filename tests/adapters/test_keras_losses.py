"""Losses that are no means over rows, and steps without some gradients: N workers train as one process does."""

import pytest
from keras_here import both_ways, keras, needs_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="about TensorFlow: run it in .nox/tf"
)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("what_a_loss_is_divided_by_is_its_weight", marks=on_torch(pytest.mark.promise)),
        pytest.param("a_train_step_and_a_loss_of_the_models_own", marks=needs_keras_3),
        "a_loss_that_a_layer_adds_has_to_be_a_mean_over_rows",
        "a_masked_batch_leaves_float16_gradients_finite",
        pytest.param("of_look_ups_are_those_of_one_process", marks=on_tensorflow),
        pytest.param("without_a_reduction_are_sums", marks=on_tensorflow),
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_losses_{script}")).require_success()


@needs_keras_3
@both_ways
def test_a_weight_without_a_gradient_and_uneven_batches(run_keras):
    """It stays as in one process; where only some workers use it, the others' gradient is zero."""
    run_keras(script_path("keras_losses_a_weight_without_a_gradient_and_uneven")).require_success()
