"""Fits without `distribute`, callbacks beside it, and files of several, on every back end that is installed."""

import pytest
from keras_here import on_keras_3, on_torch
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("no_worker_trains_a_common_model_alone", marks=on_torch(pytest.mark.promise)),
        pytest.param("callbacks_beside_those_of_distribute_belong_to_them", marks=on_keras_3(pytest.mark.promise)),
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_callback_lists_{script}")).require_success()


@on_torch(pytest.mark.promise)
def test_a_file_that_two_workers_write_is_noticed(run_keras, tmp_path):
    outcome = run_keras(script_path("keras_callback_lists_a_file_that_two_workers_write_is_noticed")).require_success()
    (warning,) = [
        line for log in outcome.logs for line in log.splitlines() if "WARNING" in line and "has written" in line
    ]
    assert "common." in warning
