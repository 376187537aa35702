"""Real fits of real Keras models on several processes, the same tests on every back end that is installed."""

import pytest
from keras_here import KERAS_2, needs_keras_3, on_torch
from programs import run_python
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        pytest.param("averaged_gradients_equal_one_process_with_larger_batches", 3, marks=pytest.mark.promise),
        pytest.param("weights_follow_the_rule_and_writes_in_mid_epoch_count", 2, marks=pytest.mark.promise),
        ("constraints_hold_with_a_rule", 2),
        pytest.param("noise_without_a_seed_differs_between_fits", 2, marks=on_torch(pytest.mark.promise)),
        pytest.param("frozen_weights_are_sent_if_they_change", 2, marks=on_torch(pytest.mark.promise)),
        pytest.param("a_checkpoint_in_the_middle_of_an_epoch_is_the_center", 2, marks=needs_keras_3),
        pytest.param("sequences_of_batches_train_and_evaluate_exactly", 3, marks=pytest.mark.slow),
        pytest.param("models_of_all_sorts", 2, marks=pytest.mark.slow),
        pytest.param("ways_to_run_a_step", 2, marks=needs_keras_3),
        pytest.param("a_loop_over_train_on_batch", 2, marks=pytest.mark.slow),
    ],
)
def test_workers(run_keras, script, workers):
    run_keras(script_path(f"keras_jobs_{script}"), workers).require_success()


@pytest.mark.promise
def test_logs_are_those_of_one_process_on_all_the_data(run_keras):
    """Unequal shards, partial batches, metrics with state; of training too, seen with weights that stand still."""
    outcome = run_keras(script_path("keras_jobs_logs_are_those_of_one_process"), workers=3).require_success()
    assert len({outcome.reported[f"val_loss {rank}"] for rank in range(3)}) == 1
    assert outcome.reported["val_loss"] == outcome.reported["val_loss 0"]


@pytest.mark.parametrize("mode", [pytest.param("async", marks=on_torch(pytest.mark.promise)), "sync"])
def test_statistics_of_batch_normalization_decay_as_in_one_process(run_keras, mode):
    """In repeated fits, in single steps between them, of a class of the user; saved models have the user's momentum."""
    outcome = run_keras(
        script_path("keras_jobs_statistics_decay_as_in_one_process"), args=[mode], workers=2
    ).require_success()
    assert [log.count("momentum ** 2, 0.25, 0.81 instead of 0.5, 0.9") for log in outcome.logs] == [1, 1]


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
    run_python(alone, tmp_path / f"rank0.{suffix}", tmp_path / "expected.npz", "23"[not KERAS_2], timeout=400)


@needs_keras_3
def test_training_resumes_at_the_right_epoch_on_every_worker(run_keras, tmp_path):
    script = script_path("keras_jobs_training_resumes_at_the_right_epoch_on_every")
    crashed = run_keras(script, args=["crash"])
    assert crashed.result.status == 3, crashed.logs
    assert sorted(path.name for path in tmp_path.glob("backup*")) == ["backup0"]
    run_keras(script).require_success()
    assert not list(tmp_path.glob("backup*"))  # Keras removes it at the end
