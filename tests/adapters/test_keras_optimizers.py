"""The optimizers of a model of Keras 3: several in one model, and those of copies, of files and of mixed precision."""

import pytest
from keras_here import both_ways, keras, needs_keras_3
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600), needs_keras_3]


@both_ways
def test_a_gan_with_two_optimizers_equals_one_process(run_keras):
    """Each with averages of its own, in any order, also where one worker has fewer batches than the other."""
    run_keras(script_path("keras_optimizers_a_gan_with_two_optimizers_equals_one_process")).require_success()


@pytest.mark.parametrize(
    "script",
    [
        "some_plain_optimizers_are_refused",
        "a_copy_of_a_synchronous_model_does_not_train_alone",
        "each_kind_equals_one_process",
        "the_loss_scale_is_one_decision_of_all_workers",
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_optimizers_{script}")).require_success()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="this train_step is one of torch")
def test_the_optimizer_of_a_model_within_another(run_keras):
    """It is found in an attribute of the model that is trained; otherwise that is told."""
    run_keras(script_path("keras_optimizers_the_optimizer_of_a_model_within_another")).require_success()


@both_ways
def test_a_weight_that_only_some_workers_use(run_keras):
    """Each worker averages with zeros; where a step is compiled for some weights, it is refused."""
    run_keras(script_path("keras_optimizers_a_weight_that_only_some_workers_use")).require_success()
