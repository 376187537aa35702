"""What callbacks see, write and survive in a fit of several workers, on every back end that is installed."""

import pytest
from keras_here import needs_keras_3, on_keras_3, on_torch
from needing import needs_package
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("see_the_values_of_all_workers_at_the_end_of_an_evaluation", marks=needs_keras_3),
        "that_are_added_later_see_the_center_too",
        pytest.param("change_the_center_once_all_have_read_it", marks=on_torch(pytest.mark.promise)),
        pytest.param(
            "of_a_search_of_kerastuner_are_those_of_one_process",
            marks=[needs_keras_3, needs_package("keras_tuner"), pytest.mark.slow],
        ),
        pytest.param(
            "write_one_orbax_checkpoint_which_is_the_center", marks=[needs_keras_3, needs_package("orbax.checkpoint")]
        ),
        pytest.param("no_worker_trains_a_common_model_alone", marks=on_torch(pytest.mark.promise)),
        pytest.param("beside_those_of_distribute_belong_to_them", marks=on_keras_3(pytest.mark.promise)),
    ],
)
def test_workers(run_keras, script):
    run_keras(script_path(f"keras_callbacks_{script}")).require_success()


@on_torch(pytest.mark.promise)
def test_a_file_that_two_workers_write_is_noticed(run_keras, tmp_path):
    outcome = run_keras(script_path("keras_callbacks_a_file_that_two_workers_write_is_noticed")).require_success()
    (warning,) = [
        line for log in outcome.logs for line in log.splitlines() if "WARNING" in line and "has written" in line
    ]
    assert "common." in warning
