"""Fits without `distribute`, callbacks beside it, and files of several, on every back end that is installed."""

import pytest
from keras_here import on_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@on_torch(pytest.mark.promise)
def test_a_model_that_workers_have_trained_together_is_trained_by_none_of_them_alone(run_keras):
    """By a fit without `distribute`, or by ``train_on_batch``; what is meant for one worker alone goes on with a word.

    A fit of another model is warned of, as it may be meant; neither is one of a script that shares weights by itself.
    """
    run_keras(script_path("keras_callback_lists_a_model_that_workers_have_trained_together")).require_success()


@on_keras_3(pytest.mark.promise)
def test_callbacks_beside_those_of_distribute_belong_to_them(run_keras, tmp_path):
    """In front of them, behind them and both: files are written once, values and stops are those of all workers."""
    run_keras(script_path("keras_callback_lists_callbacks_beside_those_of_distribute_belong")).require_success()


@on_torch(pytest.mark.promise)
def test_a_file_that_two_workers_write_is_noticed(run_keras, tmp_path):
    outcome = run_keras(script_path("keras_callback_lists_a_file_that_two_workers_write_is_noticed")).require_success()
    (warning,) = [
        line for log in outcome.logs for line in log.splitlines() if "WARNING" in line and "has written" in line
    ]
    assert "common." in warning
