"""The optimizers of a model of Keras 3: several in one model, and those of copies, of files and of mixed precision."""

import pytest
from keras_here import both_ways, keras, needs_keras_3
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600), needs_keras_3]


@both_ways
def test_a_gan_with_two_optimizers_equals_one_process(run_keras):
    """Each with averages of its own, in any order, also where one worker has fewer batches than the other."""
    run_keras(script_path("keras_optimizers_a_gan_with_two_optimizers_equals_one_process")).require_success()


def test_optimizers_of_which_some_are_plain_are_refused(run_keras):
    run_keras(script_path("keras_optimizers_optimizers_of_which_some_are_plain")).require_success()


def test_a_copy_of_a_synchronous_model_does_not_train_alone(run_keras):
    """As the original does not; unless a rule trains it, or it gets a name of its own."""
    run_keras(script_path("keras_optimizers_a_copy_of_a_synchronous_model_does_not_train")).require_success()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="this train_step is one of torch")
def test_the_optimizer_of_a_model_within_another(run_keras):
    """It is found in an attribute of the model that is trained; otherwise that is told."""
    run_keras(script_path("keras_optimizers_the_optimizer_of_a_model_within_another")).require_success()


def test_each_kind_of_optimizer_equals_one_process(run_keras):
    """Muon, Lion and Adafactor, with decay of the weights or a limit to gradients: on the mean gradient."""
    run_keras(script_path("keras_optimizers_each_kind_equals_one_process")).require_success()


@both_ways
def test_a_weight_that_only_some_workers_use(run_keras):
    """Each worker averages with zeros; where a step is compiled for some weights, it is refused."""
    run_keras(script_path("keras_optimizers_a_weight_that_only_some_workers_use")).require_success()


def test_the_loss_scale_is_one_decision_of_all_workers(run_keras):
    """The policy mixed_float16 wraps optimizers by itself; an overflow on one worker leaves the step out on all."""
    run_keras(script_path("keras_optimizers_the_loss_scale_is_one_decision")).require_success()
