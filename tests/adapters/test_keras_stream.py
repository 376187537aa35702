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


@pytest.mark.parametrize(
    "script",
    [
        "fits_on_a_stream_and_on_the_host_take_turns",
        "a_step_that_trains_some_weights_is_right_in_each_fit",
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_stream_{script}")).require_success()
