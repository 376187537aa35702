"""Real fits of real Keras models on several processes, the same tests on every back end that is installed."""

import os
import subprocess
import sys

import pytest
from keras_here import KERAS_2, needs_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.promise
def test_workers_with_averaged_gradients_equal_one_process_with_larger_batches(run_keras):
    """Weight by weight to 1e-5 after 20 steps, with clipping behind the average, and state in the optimizer."""
    run_keras(script_path("keras_jobs_workers_with_averaged_gradients_equal"), workers=3).require_success()


@pytest.mark.promise
def test_logs_are_those_of_one_process_on_all_the_data(run_keras):
    """Unequal shards, partial batches, metrics with state; of training too, seen with weights that stand still."""
    outcome = run_keras(script_path("keras_jobs_logs_are_those_of_one_process"), workers=3).require_success()
    assert len({outcome.reported[f"val_loss {rank}"] for rank in range(3)}) == 1
    assert outcome.reported["val_loss"] == outcome.reported["val_loss 0"]


@pytest.mark.promise
def test_weights_follow_the_rule_and_writes_in_mid_epoch_count(run_keras):
    """EASGD keeps the sum of all weights and the center; callbacks move the weights of each worker otherwise."""
    run_keras(script_path("keras_jobs_weights_follow_the_rule_and_writes_in_mid")).require_success()


def test_constraints_hold_with_a_rule(run_keras):
    """A rule moves weights after the optimizer has applied their constraints."""
    run_keras(script_path("keras_jobs_constraints_hold_with_a_rule")).require_success()


@pytest.mark.parametrize("mode", [pytest.param("async", marks=on_torch(pytest.mark.promise)), "sync"])
def test_statistics_of_batch_normalization_decay_as_in_one_process(run_keras, mode):
    """In repeated fits, in single steps between them, of a class of the user; saved models have the user's momentum."""
    outcome = run_keras(
        script_path("keras_jobs_statistics_decay_as_in_one_process"), args=[mode], workers=2
    ).require_success()
    assert [log.count("momentum ** 2, 0.25, 0.81 instead of 0.5, 0.9") for log in outcome.logs] == [1, 1]


@on_torch(pytest.mark.promise)
def test_noise_without_a_seed_differs_between_workers_and_fits(run_keras):
    """As the noise of a VAE or a GAN, `keras.random.normal(shape)`; what the script draws next is the same again."""
    run_keras(script_path("keras_jobs_noise_without_a_seed_differs_between_workers")).require_success()


@on_torch(pytest.mark.promise)
def test_frozen_weights_are_not_sent_unless_they_change(run_keras):
    run_keras(script_path("keras_jobs_frozen_weights_are_not_sent_unless")).require_success()


@pytest.mark.slow
def test_writers_write_once_what_the_center_is_and_stopping_keeps_the_best(run_keras, tmp_path):
    outcome = run_keras(script_path("keras_jobs_writers")).require_success()
    suffix = "h5" if KERAS_2 else "keras"
    written = {path.name for path in tmp_path.iterdir() if path.name.startswith("rank") and path.suffix != ".log"}
    assert written == {f"rank0.{suffix}", "rank0.csv"}
    assert "Epoch 1/9" in outcome.logs[0]
    assert "Epoch" not in outcome.logs[1]
    assert "loss:" not in outcome.logs[1]
    # The checkpoint opens where this package is not installed, and holds the center.
    alone = script_path("keras_jobs_writers_write_once_what_the_center")
    command = [sys.executable, alone, tmp_path / f"rank0.{suffix}", tmp_path / "expected.npz", "23"[not KERAS_2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=os.environ)
    assert done.returncode == 0, done.stderr


@needs_keras_3
def test_training_resumes_at_the_right_epoch_on_every_worker(run_keras, tmp_path):
    script = script_path("keras_jobs_training_resumes_at_the_right_epoch_on_every")
    crashed = run_keras(script, args=["crash"])
    assert crashed.result.status == 3, crashed.logs
    assert sorted(path.name for path in tmp_path.glob("backup*")) == ["backup0"]
    run_keras(script).require_success()
    assert not list(tmp_path.glob("backup*"))  # Keras removes it at the end


@needs_keras_3
def test_a_checkpoint_in_the_middle_of_an_epoch_is_the_center(run_keras, tmp_path):
    run_keras(script_path("keras_jobs_a_checkpoint_in_the_middle_of_an_epoch")).require_success()


@pytest.mark.slow
def test_sequences_of_batches_train_and_evaluate_exactly(run_keras):
    run_keras(script_path("keras_jobs_sequences_of_batches_train_and_evaluate"), workers=3).require_success()


@pytest.mark.slow
def test_models_of_all_sorts(run_keras):
    """Several outputs, weights of samples, no metrics; losses and metrics stay those of all the data.

    Batches are full: on TensorFlow and Keras 2 the loss of each output is Keras's own mean over batches, not rows.
    """
    run_keras(script_path("keras_jobs_models_of_all_sorts")).require_success()


@needs_keras_3
def test_ways_to_run_a_step(run_keras):
    run_keras(script_path("keras_jobs_ways_to_run_a_step")).require_success()


@pytest.mark.slow
def test_a_loop_over_train_on_batch(run_keras):
    run_keras(script_path("keras_jobs_a_loop_over_train_on_batch")).require_success()
