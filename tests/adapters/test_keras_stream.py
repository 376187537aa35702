"""Gradients of JAX that are averaged between the kernels of the compiled step, here with the processor as the device.

The driver and NCCL are those of `processor_cuda.c` and `processor_nccl.c`; all else is what runs on GPUs. Tests of
other files run with such gradients too, see `both_ways`.
"""

import pytest
from keras_here import AS_TENSORS, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(600),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="about JAX: run it with KERAS_BACKEND=jax"),
    pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True),
]


@pytest.mark.parametrize("loss", ["sum_over_batch_size", "sum", "masked"])
def test_gradients_on_a_stream_are_those_of_one_process(run_keras, loss):
    """Batches of other sizes on the workers, and other numbers of them; against a step by hand on all rows."""
    run_keras(script_path("keras_stream_gradients"), args=[loss]).require_success()


def test_a_worker_that_is_killed_ends_the_fit_of_the_other(run_keras):
    outcome = run_keras(script_path("keras_stream_a_worker_that_is_killed_ends_the_fit"))
    assert outcome.reported.get("told") == 1, outcome.logs[0]


def test_fits_on_a_stream_and_on_the_host_take_turns(run_keras):
    """A compiled step belongs to one of the two ways."""
    run_keras(script_path("keras_stream_fits_on_a_stream_and_on_the_host_take_turns")).require_success()


def test_a_step_that_trains_some_weights_is_right_in_each_fit(run_keras):
    """Programs are compiled once, in the first fit; workers have other numbers of batches. Against NumPy."""
    run_keras(script_path("keras_stream_some_weights")).require_success()
