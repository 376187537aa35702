"""What callbacks see, write and survive in a fit of several workers, on every back end that is installed."""

import importlib.util

import pytest
from keras_here import needs_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


def needs(package):
    there = importlib.util.find_spec(package.partition(".")[0]) and importlib.util.find_spec(package)
    return pytest.mark.skipif(not there, reason=f"needs {package}: `make test` runs this where it is installed")


@needs_keras_3
def test_callbacks_see_the_values_of_all_workers_at_an_evaluations_end(run_keras):
    """Such as TensorBoard, which writes them; and a deep copy of the list is for a fit of its own."""
    run_keras(script_path("keras_callbacks_callbacks_see_the_values_of_all_workers")).require_success()


def test_callbacks_that_come_to_the_list_later_see_the_center_too(run_keras):
    """Such as those that KerasTuner adds to a copy of the list; what they change stays, everywhere."""
    run_keras(script_path("keras_callbacks_that_come_later")).require_success()


@on_torch(pytest.mark.promise)
def test_what_a_callback_changes_reaches_the_center_once_all_have_read_it(run_keras):
    """Rank 1 reads the center as late as it can: when rank 0 has done all that it does by itself."""
    run_keras(script_path("keras_callbacks_what_a_callback_changes_reaches_the_center")).require_success()


@needs_keras_3
@needs("keras_tuner")
@pytest.mark.slow
def test_a_search_of_kerastuner_equals_that_of_one_process(run_keras):
    """With averaged gradients; with a rule its choices are those of all workers too, and so is the best model."""
    run_keras(script_path("keras_callbacks_a_search_of_kerastuner_equals")).require_success()


@needs_keras_3
@needs("orbax.checkpoint")
def test_an_orbax_checkpoint_in_the_middle_of_an_epoch_is_written_once_and_is_the_center(run_keras, tmp_path):
    run_keras(script_path("keras_callbacks_an_orbax_checkpoint_in_the_middle")).require_success()
