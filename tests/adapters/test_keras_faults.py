"""Keras fits in which something is uneven, ends early, or goes wrong, on every back end that is installed."""

import json
from unittest.mock import Mock

import pytest
from keras_here import both_ways, keras, on_torch
from scripts_here import script_path

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras import modes
from platoon_plugins.keras.evaluation import Evaluation

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@both_ways
@pytest.mark.slow
@on_torch(pytest.mark.promise)
def test_a_stop_of_one_is_a_stop_of_all(run_keras):
    """In the middle of an epoch and at its end, by each policy, with unequal numbers of batches, with and without
    validation.
    """
    run_keras(script_path("keras_faults_a_stop_of_one_is_a_stop_of_all")).require_success()


@pytest.mark.parametrize(
    "script",
    [
        "a_job_that_stops_ends_the_fit_whatever_the_policy",
        pytest.param("several_fits_of_one_script", marks=pytest.mark.slow),
        "a_vote_does_not_need_those_who_have_ended_their_epoch",
        "weights_that_are_set_after_a_callback_has_raised_stay",
        pytest.param("a_sequence_that_each_worker_shuffles_is_refused", marks=on_torch(pytest.mark.promise)),
        pytest.param(
            "what_cannot_work_is_refused_on_every_worker", marks=[pytest.mark.slow, on_torch(pytest.mark.promise)]
        ),
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_faults_{script}")).require_success()


@pytest.mark.promise
def test_of_workers_whose_callbacks_have_changed_weights_the_first_counts(monkeypatch):
    roots = []
    monkeypatch.setattr(modes, "copy_values", lambda state, worker, root: roots.append(root))
    monkeypatch.setattr(modes, "state_of", lambda *its: [])
    reports = {rank: {"checksum": rank, "changed": rank > 0} for rank in range(3)}
    modes.Synchronous.take_reports(Mock(), reports)
    assert roots == [1]


@pytest.mark.promise
def test_values_of_an_evaluation_that_only_some_have_made_are_left_out():
    """Keras 2 does not evaluate after a stop in the middle of an epoch."""
    worker, backend = Mock(), Mock(lets_steps_choose_logs=False)
    worker.gather.return_value = [[0, True], [1, False]]
    summed = Mock(pairs={"evaluate": (1.0, 2.0)}, ranks=[0, 1], arrays=[0, 0])
    worker.advanced.sum_arrays.return_value = summed
    metrics = backend.metrics.return_value
    metrics.train_state.return_value, metrics.results.return_value = [], {"loss": 1.0}
    evaluation = Evaluation(worker, backend, None, None)
    evaluation.add_up_training(True, None, Mock(stops=True))
    logs = {"loss": 2.0, "val_loss": 3.0}
    evaluation.fill(logs)
    assert logs == {"loss": 1.0}


@both_ways
@pytest.mark.slow
def test_averaged_gradients_with_unequal_numbers_of_batches(run_keras):
    """Those that have no batch left wait and catch up: no rank hangs, and all end with the same weights."""
    run_keras(script_path("keras_faults_averaged_gradients_with_unequal_numbers"), workers=3).require_success()


@pytest.mark.slow
def test_a_fit_with_a_rule_goes_on_without_a_worker_that_is_killed(run_keras):
    outcome = run_keras(script_path("keras_faults_goes_on_without_one"), workers=3)
    assert outcome.result.status != 0  # a killed worker is no success
    assert outcome.reported["epochs 0"] == outcome.reported["epochs 2"] == 4, outcome.logs
    assert outcome.reported["weights 0"] == outcome.reported["weights 2"]
    assert outcome.reported["val_loss 0"] == outcome.reported["val_loss 2"]


def test_a_fit_whose_worker_is_killed_goes_on_from_the_checkpoint(platoon, tmp_path):
    script = script_path("keras_faults_goes_on_from_the_checkpoint")
    options = ["--max-restarts", 1, "--checkpoint-every", 1000, "--log-dir", "logs", "--summary", "s.json"]
    done = platoon("launch", "-n", 2, "-D", "cpu", *options, script, tmp_path)
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, done.stdout + "".join(logs)
    reported = json.loads((tmp_path / "s.json").read_text())
    assert reported["restarts"] == 1
    for rank in range(2):
        # The center is in the model; the last epoch of a worker that had not said yet that it was over is done again.
        assert reported[f"new {rank}"] == 0
        assert reported[f"epochs {rank}"] in ("[3, 4]", "[2, 3, 4]")
    assert reported["epochs 0"] == reported["epochs 1"]


@both_ways
@pytest.mark.promise
def test_a_synchronous_fit_ends_everywhere_if_a_worker_is_killed(run_keras):
    outcome = run_keras(script_path("keras_faults_a_synchronous_fit_ends_everywhere"))
    assert outcome.result.status != 0
    assert outcome.reported["kind 0"] == "WorkerLostError"
    assert "rank 1" in outcome.reported["error 0"]


@pytest.mark.slow
def test_what_a_callback_does_on_one_rank_comes_to_all(run_keras):
    """With averaged gradients, weights and learning rates must stay the same on all workers."""
    outcome = run_keras(script_path("keras_faults_what_a_callback_does_on_one_rank_comes")).require_success()
    assert "differ at the end of an epoch" in outcome.logs[0]


def test_an_exception_of_a_callback_is_the_last_word_of_a_worker(run_keras):
    """The model has the center's weights then: its own are put back while Python can still do so."""
    outcome = run_keras(script_path("keras_faults_an_exception_of_a_callback_is_the_last_word"))
    assert outcome.result.status != 0
    for log in outcome.logs:
        assert log.splitlines()[-1] == "OSError: of a callback", log


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="about torch: run it with KERAS_BACKEND=torch")
def test_a_process_group_by_which_keras_itself_trains_is_refused(tmp_path):
    """That is Keras from 3.16 on, whose models have an attribute for it."""
    from torch import distributed

    from platoon_plugins.keras import backends

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    object.__setattr__(model, "ddp_model", None)
    backends.current().require_trainable(model, False)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        with pytest.raises(ConfigurationError, match="trains with DistributedDataParallel"):
            backends.current().require_trainable(model, False)
    finally:
        distributed.destroy_process_group()
