"""All state of a model is one on all workers: of any dtype, of layers, optimizers and torch modules."""

import pytest
from keras_here import keras, needs_keras_3, on_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", [pytest.param("async", marks=on_keras_3(pytest.mark.promise)), "sync"])
def test_after_fit_all_state_is_one(run_keras, mode):
    """Each worker begins with other values; the rules by hand, and everything bit for bit, after two fits."""
    outcome = run_keras(script_path("keras_state_of_a_zoo_is_one_on_all_workers"), args=[mode])
    outcome.require_success()
    # Parts of the model, whose files all workers write, are the same on all of them too.
    assert not any("which another worker has written too" in log for log in outcome.logs)


@needs_keras_3
@pytest.mark.parametrize(
    ("how", "mode"),
    [
        pytest.param("end", "async", marks=on_torch(pytest.mark.promise)),
        ("lora", "async"),
        ("middle", "async"),
        ("compile", "sync"),
    ],
)
def test_weights_that_become_trainable_during_a_fit(run_keras, how, mode):
    """They are shared from the next epoch on; asynchronous training refuses them in the middle of an epoch."""
    if keras.backend.backend() == "jax" and how not in ("lora", "compile"):
        pytest.skip("Keras on JAX trains them only after another compile")
    run_keras(script_path("keras_state_unfrozen"), args=[how, mode]).require_success()
