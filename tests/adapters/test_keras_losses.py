"""Losses that are no means over rows, and steps without some gradients: N workers train as one process does."""

import pytest
from keras_here import both_ways, needs_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]


@on_torch(pytest.mark.promise)
def test_what_a_loss_is_divided_by_is_its_weight(run_keras):
    """Masked tokens, sums, means by sample weights, and partial batches: weights and logs of one process."""
    run_keras(script_path("keras_losses_what_a_loss_is_divided_by_is_its_weight")).require_success()


@needs_keras_3
def test_a_train_step_and_a_loss_of_the_models_own(run_keras):
    """They may call compute_loss without x, and give it other arguments; batches count by their rows."""
    run_keras(script_path("keras_losses_a_train_step_and_a_loss_of_the_models_own")).require_success()


def test_a_loss_that_a_layer_adds_has_to_be_a_mean_over_rows(run_keras):
    """Its sum over a mini-batch is not known as one: a warning says what becomes of it; one of weights has none."""
    run_keras(script_path("keras_losses_a_loss_that_a_layer_adds_has_to_be_a_mean")).require_success()


def test_a_batch_in_which_all_is_masked_leaves_float16_gradients_finite(run_keras):
    run_keras(script_path("keras_losses_a_batch_in_which_all_is_masked_leaves")).require_success()


@needs_keras_3
@both_ways
def test_a_weight_without_a_gradient_and_uneven_batches(run_keras):
    """It stays as in one process; where only some workers use it, the others' gradient is zero."""
    run_keras(script_path("keras_losses_a_weight_without_a_gradient_and_uneven")).require_success()
