"""What the optimizers and trainers of Keras 3 can do, on several workers as in one process with larger batches."""

import pytest
from keras_here import AS_TENSORS, both_ways, keras, needs_keras_3, on_devices, on_torch
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


# Gradients that are averaged where they are, here with the processor as the device: on torch as tensors, on JAX between
# the kernels of the compiled step, with the driver and NCCL of `processor_cuda.c` and `processor_nccl.c`.


@pytest.mark.backend
@on_devices
@pytest.mark.parametrize("loss", ["sum_over_batch_size", "sum", "masked"])
def test_gradients_on_devices_are_those_of_one_process(run_keras, loss):
    run_keras(script_path("keras_gradients_are_those_of_one_process"), args=[loss]).require_success()


@pytest.mark.backend
@on_devices
def test_fits_on_the_device_and_on_the_host_take_turns(run_keras):
    run_keras(script_path("keras_gradients_on_the_device_and_on_the_host_take_turns")).require_success()


@pytest.mark.backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="about JAX: run it with KERAS_BACKEND=jax")
@pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True)
def test_a_step_that_trains_some_weights_is_right_in_each_fit(run_keras):
    run_keras(script_path("keras_gradients_of_some_weights")).require_success()
