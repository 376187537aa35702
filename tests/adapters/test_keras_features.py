"""What the optimizers and trainers of Keras 3 can do, on several workers as in one process with larger batches."""

import pytest
from keras_here import both_ways, keras, needs_keras_3, on_torch
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    needs_keras_3,
]


@on_torch(pytest.mark.promise)
@pytest.mark.slow
def test_options_of_optimizers_and_fit_equal_one_process(run_keras):
    """Accumulation, averages of weights, decay, schedules, class weights, an own train_step, mixed precision."""
    run_keras(script_path("keras_features_options_of_optimizers_and_fit_equal")).require_success()


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="its trainer needs logs, also alone")
@both_ways
def test_a_step_without_logs_has_ended_before_others_are_waited_for(run_keras):
    """Workers have other numbers of batches; the step is long enough to go on while the host comes to its end."""
    run_keras(script_path("keras_features_a_step_without_logs_has_ended_before_others")).require_success()
